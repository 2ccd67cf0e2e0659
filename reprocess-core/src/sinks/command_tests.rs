use serde_json::json;

use super::*;

fn event() -> Delivery {
    let payload = json!({ "day": "2026-10-05", "rows": 3, "of": { "a/b": "x y" }, "none": null });
    Delivery { key: "event-1".to_owned(), channel: "events".to_owned(), payload }
}

fn shell(script: &str) -> CommandSink {
    CommandSink::new("events", "/bin/sh").with_args(["-c", script])
}

async fn sent(script: &str) -> Result<Answer> {
    shell(script).send(&event()).await
}

#[tokio::test]
async fn the_program_gets_the_delivery_and_says_what_became_of_it() {
    let accepted = |note: &str| Answer::Accepted { note: Some(note.to_owned()) };
    assert_eq!(sent("cat").await.unwrap(), accepted(&serde_json::to_string(&event()).unwrap()));
    assert_eq!(sent("echo first; echo $REPROCESS_KEY; echo").await.unwrap(), accepted("event-1"));
    assert_eq!(sent("exit 0").await.unwrap(), Answer::Accepted { note: None });
    let busy = sent("echo full >&2; exit 75").await.unwrap();
    assert_eq!(busy, Answer::Busy { why: "/bin/sh exited with 75: full".to_owned() });
    let refused = sent("echo no such model; exit 2").await.unwrap();
    assert_eq!(refused, Answer::Refused { why: "/bin/sh exited with 2: no such model".to_owned() });
    let killed = sent("kill -9 $$").await.unwrap_err();
    assert!(killed.to_string().contains("killed") && killed.is_retryable(), "{killed}");
    let absent = CommandSink::new("events", "/nowhere/at/all").send(&event()).await.unwrap();
    assert!(matches!(&absent, Answer::Busy { why } if why.contains("/nowhere/at/all")), "{absent:?}");
}

#[tokio::test]
async fn arguments_are_filled_from_the_payload_and_never_read_by_a_shell() {
    let sink =
        shell(r#"printf '%s|' "$@""#).with_args(["sh", "{/day}", "rows={/rows}, {/of/a~1b}", "{", "{/day"]);
    let answer = sink.send(&event()).await.unwrap();
    let expected = "2026-10-05|rows=3, x y|{|{/day|";
    assert_eq!(answer, Answer::Accepted { note: Some(expected.to_owned()) });
    let mut odd = event();
    odd.payload["day"] = json!("$(touch evil); `id` \"'");
    let answer = sink.send(&odd).await.unwrap();
    let said = format!("$(touch evil); `id` \"'|{}", &expected[11..]);
    assert_eq!(answer, Answer::Accepted { note: Some(said) });
    for absent in ["{/nothing}", "{/none}"] {
        let refused = shell("true").with_args([absent]).send(&event()).await.unwrap();
        assert!(matches!(&refused, Answer::Refused { why } if why.contains("nothing at")), "{refused:?}");
    }
}

#[tokio::test]
async fn a_program_is_asked_whether_a_delivery_was_received() {
    let asked = async |script: &str| shell("true").with_ask("/bin/sh", ["-c", script]).ask(&event()).await;
    assert_eq!(asked(r#"test "$REPROCESS_KEY" = event-1"#).await.unwrap(), Known::Received);
    assert_eq!(asked(r#"grep -q '"key":"other"'"#).await.unwrap(), Known::NotReceived);
    assert_eq!(asked("exit 7").await.unwrap(), Known::CannotTell);
    assert_eq!(shell("true").ask(&event()).await.unwrap(), Known::CannotTell, "nobody to ask");
    let absent = shell("true").with_ask("/nowhere", [""; 0]).ask(&event()).await.unwrap_err();
    assert!(absent.is_retryable(), "{absent}");
}

#[tokio::test]
async fn a_program_that_nobody_waits_for_is_ended() {
    let folder = std::env::temp_dir().join(format!("reprocess-sink-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let pid = folder.join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600", pid.display());
    let sink = shell(&script);
    let (delivery, started) = (event(), async {
        loop {
            if let Ok(text) = std::fs::read_to_string(&pid) {
                break text.trim().to_owned();
            }
            tokio::task::yield_now().await;
        }
    });
    let pid = tokio::select! {
        answer = sink.send(&delivery) => panic!("it ended: {answer:?}"),
        pid = started => pid,
    };
    // Ended and waited for, which the runtime does when it can.
    let lives = |bytes: Vec<u8>| bytes.starts_with(b"sleep");
    while std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(lives) {
        tokio::task::yield_now().await;
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn arguments_are_not_shown() {
    let shown = format!("{:?}", CommandSink::new("events", "curl").with_args(["--user", "me:hunter2"]));
    assert!(shown.contains("curl") && !shown.contains("hunter2"), "{shown}");
}
