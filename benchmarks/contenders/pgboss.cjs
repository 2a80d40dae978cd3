// pg-boss: fetch and complete in batches of 1,000, which is faster than its own polling worker; rows kept.
const PgBoss = require("pg-boss");
const { URL, FAILS, ATTEMPTS, HandlerCalls, open_for_append, record_delay, nowUs, pause, serve } = require("./common.cjs");

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
      const spec = FAILS ? { retryLimit: ATTEMPTS - 1, retryDelay: 0 } : {};
      await boss.insert(Array.from({ length: size }, (_, n) => ({ name: "noop", data: { n: start + n }, ...spec })));
    }
    await boss.stop();
  },
  async work(concurrency, ms) {
    const calls = new HandlerCalls();
    const boss = await started();
    const noop = async ({ n }) => {
      calls.start();
      if (ms) await pause(ms);
      calls.end(n);
    };
    // With a concurrency limit, one loop per permit, so that no job waits for a whole batch.
    const loop = async (batchSize) => {
      for (;;) {
        const jobs = await boss.fetch("noop", { batchSize });
        if (!jobs.length) break;
        if (FAILS) {
          const ends = await Promise.allSettled(jobs.map((job) => noop(job.data)));
          const ids = (status) => jobs.filter((_, nth) => ends[nth].status === status).map((job) => job.id);
          const [failed, completed] = [ids("rejected"), ids("fulfilled")];
          if (failed.length) await boss.fail("noop", failed, { message: "no route to host" });
          if (completed.length) await boss.complete("noop", completed);
          continue;
        }
        if (concurrency) for (const job of jobs) await noop(job.data);
        else await Promise.all(jobs.map((job) => noop(job.data)));
        await boss.complete("noop", jobs.map((job) => job.id));
        calls.last = Date.now() / 1000;
      }
    };
    await Promise.all(Array.from({ length: concurrency || 1 }, () => loop(concurrency ? 10 : BATCH)));
    calls.print();
  },
  async once() {
    const boss = await started();
    await boss.fetch("noop", { batchSize: BATCH });
    await boss.stop({ wait: false, graceful: false });
  },
  async loop(file) {
    const descriptor = open_for_append(file);
    const boss = await started();
    const options = { batchSize: 100, pollingIntervalSeconds: 0.5 };
    await boss.work("arrive", options, async (jobs) => jobs.forEach((job) => record_delay(descriptor, job.data.sent)));
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
