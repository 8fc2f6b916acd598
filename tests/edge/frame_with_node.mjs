// Cuts requests out of streams of bytes with Node's parser (llhttp, strict). Streams come on stdin as lines of base64,
// and for each a line goes out: {"requests": [[method, body in base64], …], "refused": true or false}.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { Duplex } from "node:stream";

const server = createServer({ insecureHTTPParser: false, keepAliveTimeout: 0 });
let found;
server.on("request", (request, response) => {
  const body = [];
  found.begun.push({ request, body });
  request.on("data", (piece) => body.push(piece));
  request.on("end", () => response.end());
});
server.on("checkContinue", (request, response) => server.emit("request", request, response));
server.on("clientError", (error, socket) => {
  // A stream that ends within a request is not refused.
  found.refused ||= error.code !== "HPE_INVALID_EOF_STATE";
  socket.destroy();
});
for (const event of ["upgrade", "connect"]) {
  server.on(event, (request, socket) => {
    found.begun.push({ request: { method: request.method, complete: true }, body: [] });
    socket.destroy();
  });
}

const frame = (bytes) =>
  new Promise((resolve) => {
    found = { begun: [], refused: false };
    const socket = new Duplex({ read() {}, write: (_data, _coding, done) => done() });
    socket.setTimeout = socket.setNoDelay = socket.setKeepAlive = () => socket;
    // A request that came to its end before the error is whole, although its handler may not have heard of that yet.
    const whole = () => found.begun.filter(({ request }) => request.complete);
    const requests = () => whole().map(({ request, body }) => [request.method, Buffer.concat(body).toString("base64")]);
    socket.on("close", () => setImmediate(() => resolve({ requests: requests(), refused: found.refused })));
    socket.on("error", () => {});
    server.emit("connection", socket);
    socket.push(bytes);
    socket.push(null);
    // Everything has been parsed in these turns of the loop; what is still open waits for more bytes.
    setImmediate(() => setImmediate(() => setImmediate(() => socket.destroy())));
  });

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await frame(Buffer.from(line, "base64"))) + "\n");
}
