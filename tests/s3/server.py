"""A server that speaks the protocol of S3, with one bucket `tables`. Prints its port, and ends with its input.

It answers one request at a time: what it does for a conditional write is to look and then to write, and two that came at once
would both be let through.
"""
import sys
import threading
import urllib.request

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.moto_server.threaded_moto_server import MotoRequestHandler
from werkzeug.serving import make_server

app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()


def one_at_a_time(environ, start_response):
    with turn:
        return list(app(environ, start_response))


server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=MotoRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{server.port}/tables", method="PUT")).read()
print(server.port, flush=True)
sys.stdin.read()
