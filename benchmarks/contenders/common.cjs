// What the node scripts share: the verbs' arguments, and a counter of handler calls. See common.py.
const fs = require("node:fs");

const seconds = () => (performance.timeOrigin + performance.now()) / 1000;
const nowUs = () => Math.round(seconds() * 1e6);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const FAILS = process.env.BENCH_FAILS; // as in common.py
const ATTEMPTS = FAILS === "once" ? 2 : 1;

class HandlerCalls {
  runs = 0;
  failed = new Set();
  first = null;
  last = null;
  start() {
    if (this.first === null) this.first = seconds();
  }
  finish() {
    this.runs += 1;
    this.last = seconds();
  }
  end(n) {
    this.finish();
    if (FAILS === "always" || (FAILS === "once" && !this.failed.has(n))) {
      this.failed.add(n);
      throw new Error("no route to host");
    }
  }
  print() {
    console.log(JSON.stringify({ runs: this.runs, first: this.first, last: this.last }));
  }
  // Return once no handler was called between two polls and the queue is empty.
  async wait_until_idle(isEmpty, every = 100) {
    const started = seconds();
    for (let seen = -1; ; seen = this.runs) {
      await pause(every);
      if (this.runs === seen && (this.runs || seconds() - started > 5) && (await isEmpty())) return;
    }
  }
}

const open_for_append = (file) => fs.openSync(file, "a");
const record_delay = (descriptor, sent) => fs.writeSync(descriptor, `${nowUs() - sent}\n`);

function serve(verbs) {
  const words = process.argv.slice(3).map((word) => (/^[0-9.]+$/.test(word) ? Number(word) : word));
  Promise.resolve(verbs[process.argv[2]](...words)).then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = {
  URL: process.env.BENCH_URL,
  FAILS,
  ATTEMPTS,
  HandlerCalls,
  open_for_append,
  record_delay,
  nowUs,
  pause,
  serve,
};
