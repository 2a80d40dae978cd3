// graphile-worker: 24 jobs at once from a local queue of 500, outcomes in batches; finished jobs are deleted.
const { Logger, makeWorkerUtils, run, runMigrations, runOnce } = require("graphile-worker");
const { Pool } = require("pg");
const { URL, FAILS, ATTEMPTS, HandlerCalls, open_for_append, record_delay, nowUs, pause, serve } = require("./common.cjs");

const logger = new Logger(() => () => {});
const FAST = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

const preset = (concurrency, fast) => ({
  worker: {
    connectionString: URL,
    concurrentJobs: concurrency || 24,
    maxPoolSize: 10,
    pollInterval: 2000,
    ...(fast ? FAST : {}),
  },
});

serve({
  async prepare(count) {
    await runMigrations({ connectionString: URL, logger });
    const utils = await makeWorkerUtils({ connectionString: URL, logger });
    for (let start = 0; start < count; start += 10000) {
      const size = Math.min(10000, count - start);
      const spec = FAILS ? { maxAttempts: ATTEMPTS } : {};
      const jobs = Array.from({ length: size }, (_, n) => ({ identifier: "noop", payload: { n: start + n }, ...spec }));
      await utils.addJobs(jobs);
    }
    await utils.release();
  },
  async work(concurrency, ms) {
    const calls = new HandlerCalls();
    const noop = async ({ n }) => {
      calls.start();
      if (ms) await pause(ms);
      calls.end(n);
    };
    const runner = await run({ preset: preset(concurrency, true), taskList: { noop }, logger, noHandleSignals: true });
    const pool = new Pool({ connectionString: URL, max: 1 });
    const left = "select exists (select from graphile_worker.jobs where attempts < max_attempts) as left";
    await calls.wait_until_idle(async () => !(await pool.query(left)).rows[0].left);
    await runner.stop();
    calls.print();
  },
  async once() {
    await runOnce({ preset: preset(0, false), taskList: { noop: async () => {} }, logger, noHandleSignals: true });
  },
  async loop(file) {
    const descriptor = open_for_append(file);
    const arrive = async (payload) => record_delay(descriptor, payload.sent);
    const runner = await run({ preset: preset(0, false), taskList: { arrive }, logger });
    await runner.promise;
  },
  async send(count, gapMs) {
    const utils = await makeWorkerUtils({ connectionString: URL, logger });
    for (let n = 0; n < count; n++) {
      await pause(gapMs);
      await utils.addJob("arrive", { sent: nowUs() });
    }
    await utils.release();
  },
});
