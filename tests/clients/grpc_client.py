"""A stock gRPC client (grpcio) with the retry policy that its service configuration gives it.

grpc_client.py PORT COUNT RETRIES: makes COUNT calls, and prints for each the status in the end. With
RETRIES 0 there is no policy.
"""

import json
import sys

import grpc

port, count, retries = map(int, sys.argv[1:4])
policy = {
    "maxAttempts": 5,
    "initialBackoff": "0.6s",
    "maxBackoff": "2s",
    "backoffMultiplier": 1.5,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
}
config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]} if retries else {}
channel = grpc.insecure_channel(
    f"127.0.0.1:{port}", options=[("grpc.service_config", json.dumps(config))]
)
call = channel.unary_unary("/echo.Echo/Say")
for number in range(count):
    try:
        answer = call(b"%d" % number, metadata=[("x-tenant-id", "acme")], timeout=20)
        print("OK" if answer == b"%d" % number else "WRONG")
    except grpc.RpcError as error:
        print(error.code().name, error.details())
