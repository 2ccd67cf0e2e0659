{# One batch for each day. In PostgreSQL a batch is merged by its key: rows that vanish upstream would stay. #}
{{ config(
    materialized='incremental', incremental_strategy='microbatch', unique_key='day',
    event_time='day', batch_size='day', begin='2025-10-01'
) }}
select
    day,
    cast(amount / 1.2 as numeric(12, 2)) as net,
    -- Tells which run of dbt built the row.
    '{{ invocation_id }}' as built_by
from {{ source('shop', 'daily_revenue') }}
