// How calls are made, and how their errors are read.

import { enumToJson } from "@bufbuild/protobuf";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { BadRequestSchema, ErrorInfoSchema, RequestInfoSchema, RetryInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import { type Reason, ReasonSchema } from "../gen/windlass/error/v1/reason_pb.js";

export const ADDRESS = process.env.WINDLASS_ADDRESS!;
export const KEY = process.env.WINDLASS_KEY!;

/** Connects when the first call is made, with a key, if there is one, on every call. */
export function connect(address: string, key?: string): Transport {
  return createGrpcTransport({
    baseUrl: `http://${address}`,
    interceptors: [
      (next) => (request) => {
        if (key) request.header.set("authorization", `Bearer ${key}`);
        return next(request);
      },
    ],
  });
}

/** When to come back, in milliseconds: what the server says, or soon. */
export function retryDelay(error: ConnectError): number {
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return delay ? Number(delay.seconds) * 1000 + delay.nanos / 1e6 : 100;
}

/** A promise that was not kept. */
export class Broken extends Error {}

export function expect(kept: boolean, otherwise: string): asserts kept {
  if (!kept) throw new Broken(otherwise);
}

export function step(what: string) {
  console.log(`  ${what}`);
}

/** Makes a call that must be refused, and checks how. Returns the error. */
export async function refused(
  what: string,
  call: Promise<unknown>,
  code: Code,
  reason: Reason,
  field = "",
): Promise<ConnectError> {
  const error = await call.then(
    () => { throw new Broken(`nobody refused ${what}`); },
    (thrown) => ConnectError.from(thrown),
  );
  const [info] = error.findDetails(ErrorInfoSchema);
  const [badRequest] = error.findDetails(BadRequestSchema);
  const fields = badRequest?.fieldViolations.map((violation) => violation.field) ?? [];
  // Our own clock may be the first to see that a deadline has passed, and gives no reason.
  const unexplained = code === Code.DeadlineExceeded && !info;
  const why = unexplained ? "" : enumToJson(ReasonSchema, reason);
  const met = `${Code[error.code]} ${info?.reason ?? ""} ${fields}`.trim();
  const expected = `${Code[code]} ${why} ${field}`.trim();
  expect(met === expected, `${what}: expected ${expected}, not ${met}: ${error.message}`);
  expect(unexplained || info?.domain === "windlass", `${what}: the domain is ${info?.domain}`);
  const [request] = error.findDetails(RequestInfoSchema);
  expect(unexplained || !!request?.requestId, `${what}: no id to ask about`);
  step(`was refused ${what}: ${met}`);
  return error;
}
