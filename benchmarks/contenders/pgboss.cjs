// pg-boss: fetch and complete in batches of 1,000, which is quicker than its own polling worker; rows stay.
const PgBoss = require("pg-boss");
const { URL, Tally, appending, arrived, nowUs, pause, serve } = require("./common.cjs");

const BATCH = 1000;

async function started() {
  const boss = new PgBoss({ connectionString: URL, schedule: false, supervise: false, max: 10 });
  boss.on("error", console.error);
  await boss.start();
  for (const name of ["noop", "arrive"]) if (!(await boss.getQueue(name))) await boss.createQueue(name);
  return boss;
}

serve({
  async prepare(count) {
    const boss = await started();
    for (let start = 0; start < count; start += 10000) {
      const size = Math.min(10000, count - start);
      await boss.insert(Array.from({ length: size }, (_, n) => ({ name: "noop", data: { n } })));
    }
    await boss.stop();
  },
  async work(slots, ms) {
    const tally = new Tally();
    const boss = await started();
    const noop = async () => {
      tally.begin();
      if (ms) await pause(ms);
      tally.end();
    };
    // With slots, one loop for each, so that none waits for a whole batch of others.
    const loop = async (batchSize) => {
      for (;;) {
        const jobs = await boss.fetch("noop", { batchSize });
        if (!jobs.length) break;
        if (slots) for (const job of jobs) await noop(job.data);
        else await Promise.all(jobs.map((job) => noop(job.data)));
        await boss.complete("noop", jobs.map((job) => job.id));
        tally.last = Date.now() / 1000;
      }
    };
    await Promise.all(Array.from({ length: slots || 1 }, () => loop(slots ? 10 : BATCH)));
    tally.print();
  },
  async once() {
    const boss = await started();
    await boss.fetch("noop", { batchSize: BATCH });
    await boss.stop({ wait: false, graceful: false });
  },
  async loop(file) {
    const descriptor = appending(file);
    const boss = await started();
    const options = { batchSize: 100, pollingIntervalSeconds: 0.5 };
    await boss.work("arrive", options, async (jobs) => jobs.forEach((job) => arrived(descriptor, job.data.sent)));
    await new Promise(() => {});
  },
  async send(count, gapMs) {
    const boss = await started();
    for (let n = 0; n < count; n++) {
      await pause(gapMs);
      await boss.send("arrive", { sent: nowUs() });
    }
    await boss.stop();
  },
});
