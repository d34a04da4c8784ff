// A wire that can be cut, to see what a client makes of it.

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";

/** Passes on what a server and its clients say to each other, until it is cut. */
export class Cut {
  private wires = new Set<Socket>();

  private constructor(readonly address: string) {}

  static async to(target: string): Promise<Cut> {
    const [host, port] = target.split(":");
    const server = createServer((client) => cut.join(client, connect(Number(port), host)));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const cut = new Cut(`127.0.0.1:${(server.address() as AddressInfo).port}`);
    return cut;
  }

  /** Cuts every connection. New ones are taken. */
  now() {
    for (const wire of this.wires) wire.destroy();
    this.wires.clear();
  }

  private join(client: Socket, server: Socket) {
    for (const [from, to] of [[client, server], [server, client]]) {
      this.wires.add(from);
      from.on("error", () => to.destroy());
      from.pipe(to);
    }
  }
}
