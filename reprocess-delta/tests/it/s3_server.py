"""A server that speaks the protocol of S3, with one bucket `tables`. Prints its port, and ends with its input."""
import sys
import urllib.request

from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
_, port = server.get_host_and_port()
urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/tables", method="PUT")).read()
print(port, flush=True)
sys.stdin.read()
