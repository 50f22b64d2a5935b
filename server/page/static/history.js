// What happened between one state and the next: counters go on, so rates are differences.
// The last two minutes come from the server when the connection begins.

const KEPT_MS = 120_000;

export class History {
  #before = new Map();
  #samples = new Map();
  #read = null;

  // The samples of the server by model, [age, delay, stall] in seconds, that came at `now` (milliseconds).
  begin(samples, now) {
    this.#before.clear();
    this.#read = null;
    const kept = (each) => each.map(([age, delay, stall]) => ({ at: now - age * 1e3, delay, stall }));
    this.#samples = new Map(Object.entries(samples).map(([name, each]) => [name, kept(each)]));
  }

  // Take a state that came at `now`; it gets `disk` (bytes a second), each model of it `rate`, `delay` and `stall` of the time since the last.
  take(state, now) {
    const { read_bytes } = state.process ?? {};
    if (this.#read && now > this.#read.at) state.disk = Math.max(read_bytes - this.#read.bytes, 0) / ((now - this.#read.at) / 1e3);
    this.#read = { bytes: read_bytes, at: now };
    for (const model of state.models) {
      const before = this.#before.get(model.name);
      const { sweeps: answered, sweep_seconds, stall_seconds } = model;
      this.#before.set(model.name, { sweeps: answered, sweep_seconds, stall_seconds, at: now });
      if (!before || !(model.sweeps >= before.sweeps && now > before.at)) continue;
      const sweeps = model.sweeps - before.sweeps;
      model.rate = sweeps / ((now - before.at) / 1e3);
      if (!sweeps) continue;
      // Counters of an engine begin again when it is opened again.
      const stalled = Math.max(model.stall_seconds - before.stall_seconds, 0);
      const sample = { at: now, delay: (model.sweep_seconds - before.sweep_seconds) / sweeps, stall: stalled / sweeps };
      this.#samples.set(model.name, [...this.of(model.name), sample]);
    }
    for (const [name, samples] of this.#samples)
      this.#samples.set(name, samples.filter(({ at }) => now - KEPT_MS <= at));
    for (const model of state.models) {
      const last = this.of(model.name).at(-1);
      model.delay = last?.delay;
      model.stall = last?.stall;
    }
  }

  of(name) {
    return this.#samples.get(name) ?? [];
  }
}
