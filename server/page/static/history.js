// What happened between one state and the next: counters go on, so rates are differences.
// It is kept in the storage of the tab, so a reload of the page continues it.

const KEPT_MS = 120_000, KEY = "history";

export class History {
  #before;
  #samples;

  constructor(storage) {
    this.storage = storage;
    const { before = [], samples = [] } = JSON.parse(storage.getItem(KEY) ?? "{}");
    this.#before = new Map(before);
    this.#samples = new Map(samples);
  }

  // Take a state that came at `now` (milliseconds since 1970); each model of it gets `rate`, `delay` and `stall` of the time since the last.
  take(state, now) {
    for (const model of state.models) {
      const before = this.#before.get(model.name);
      const { sweeps: answered, sweep_seconds, stall_seconds } = model;
      this.#before.set(model.name, { sweeps: answered, sweep_seconds, stall_seconds, at: now });
      // The clock may have been set back before the page was loaded again.
      if (!before || !(model.sweeps >= before.sweeps && now > before.at)) continue;
      const sweeps = model.sweeps - before.sweeps;
      model.rate = sweeps / ((now - before.at) / 1e3);
      const samples = this.#samples.get(model.name) ?? [];
      if (sweeps) {
        // Counters of an engine begin again when it is opened again.
        const stalled = Math.max(model.stall_seconds - before.stall_seconds, 0);
        samples.push({ at: now, delay: (model.sweep_seconds - before.sweep_seconds) / sweeps, stall: stalled / sweeps });
      }
      this.#samples.set(model.name, samples.filter(({ at }) => now - KEPT_MS <= at && at <= now));
    }
    for (const model of state.models) {
      const last = this.of(model.name).at(-1);
      model.delay = last?.delay;
      model.stall = last?.stall;
    }
    this.storage.setItem(KEY, JSON.stringify({ before: [...this.#before], samples: [...this.#samples] }));
  }

  of(name) {
    return this.#samples.get(name) ?? [];
  }
}
