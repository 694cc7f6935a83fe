"""A stock HTTP client (urllib3) with its own retry policy.

http_client.py PORT COUNT RETRIES THREADS: gets / as the tenant acme COUNT times, and prints how many
answers were 200 in the end, and how many tries were refused on the way.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import urllib3

port, count, retries, threads = map(int, sys.argv[1:5])
policy = urllib3.Retry(
    total=retries, status_forcelist=[429], respect_retry_after_header=True, raise_on_status=False
)
pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=threads, block=True, retries=policy)


def get(_):
    answer = pool.request("GET", "/", headers={"x-tenant-id": "acme", "x-api-key": "k1"})
    return answer.status, len(answer.retries.history)


with ThreadPoolExecutor(threads) as clients:
    answers = list(clients.map(get, range(count)))
print(sum(status == 200 for status, _ in answers), sum(refused for _, refused in answers))
