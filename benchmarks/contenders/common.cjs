// What the scripts for node share: the verbs' arguments, and the count of what handlers did. See common.py.
const fs = require("node:fs");

const seconds = () => (performance.timeOrigin + performance.now()) / 1000;
const nowUs = () => Math.round(seconds() * 1e6);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Tally {
  runs = 0;
  first = null;
  last = null;
  begin() {
    if (this.first === null) this.first = seconds();
  }
  end() {
    this.runs += 1;
    this.last = seconds();
  }
  print() {
    console.log(JSON.stringify({ runs: this.runs, first: this.first, last: this.last }));
  }
  // Return when no handler has been called for two looks in a row and nothing is left to do.
  async settled(isEmpty, every = 100) {
    const begun = seconds();
    for (let seen = -1; ; seen = this.runs) {
      await pause(every);
      if (this.runs === seen && (this.runs || seconds() - begun > 5) && (await isEmpty())) return;
    }
  }
}

const appending = (file) => fs.openSync(file, "a");
const arrived = (descriptor, sent) => fs.writeSync(descriptor, `${nowUs() - sent}\n`);

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

module.exports = { URL: process.env.BENCH_URL, Tally, appending, arrived, nowUs, pause, serve };
