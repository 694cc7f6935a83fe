"""A gRPC service that answers every call with what it was sent. Prints its port."""

from concurrent import futures

import grpc


class Echo(grpc.GenericRpcHandler):
    def service(self, _call):
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: request)


server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Echo(),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
