// Lines of all ranks in one order, by time; those of one rank keep their own order.

export class Lines {
  constructor(most = 400_000) {
    this.most = most;
    this.all = [];
    this.shown = this.all;
    this.filter = null;
    this.dropped = 0;
  }

  /** Adds lines, which may belong before earlier ones. True when all of them went to the end. */
  add(lines) {
    for (const line of lines) {
      // within a stream time never runs backwards, whatever its marks say
      line.time = line.stream.latest = Math.max(line.time, line.stream.latest ?? 0);
    }
    const sorted = lines.every((line, i) => i === 0 || lines[i - 1].time <= line.time) ? lines : lines.toSorted((a, b) => a.time - b.time);
    const tail = this.#splitAfter(sorted[0]?.time ?? Infinity);
    if (tail.length) {
      merge(this.all, tail, sorted);
    } else {
      for (const line of sorted) this.all.push(line);
    }
    const whole = !tail.length && !this.#trim();
    if (this.filter && !whole) this.shown = this.all.filter(this.filter);
    else if (this.filter) for (const line of sorted) this.filter(line) && this.shown.push(line);
    return whole;
  }

  /** Takes off the lines later than `time`. */
  #splitAfter(time) {
    let [low, high] = [0, this.all.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[middle].time <= time) low = middle + 1;
      else high = middle;
    }
    return low < this.all.length ? this.all.splice(low) : [];
  }

  /** A browser cannot hold everything: the oldest lines go, in steps, so that it is seldom done. */
  #trim() {
    if (this.all.length <= this.most * 1.1) return false;
    const gone = this.all.length - this.most;
    this.all.splice(0, gone);
    this.dropped += gone;
    return true;
  }

  keep(filter) {
    this.filter = filter;
    this.shown = filter ? this.all.filter(filter) : this.all;
  }
}

function merge(target, left, right) {
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    const takeLeft = j === right.length || (i < left.length && left[i].time <= right[j].time);
    target.push(takeLeft ? left[i++] : right[j++]);
  }
}
