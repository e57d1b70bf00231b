/** How answers are asked for, and prompts to begin chats with: of this browser. */

import type { KeyValueStore } from "../core/outbox";
import { parsedParams, type NumberParam } from "../core/params";
import type { Params } from "../wire/events";

export interface Preset {
  readonly name: string;
  readonly text: string;
}

export class Settings {
  params = $state.raw<Params>({});
  presets = $state.raw<readonly Preset[]>([]);

  constructor(
    private readonly storage: KeyValueStore,
    private readonly prefix: string,
  ) {
    this.params = parsedParams(read(storage.getItem(`${prefix}params`)));
    const presets = read(storage.getItem(`${prefix}presets`));
    this.presets = Array.isArray(presets) ? presets.filter(isPreset) : [];
  }

  /** Null goes back to the server's default. */
  setNumber(name: NumberParam, value: number | null): void {
    const { [name]: _, ...others } = this.params;
    this.#setParams(value === null ? others : { ...others, [name]: value });
  }

  setStops(stops: readonly string[]): void {
    const { stop: _, ...others } = this.params;
    this.#setParams(stops.length === 0 ? others : { ...others, stop: [...stops] });
  }

  setDropOldest(on: boolean): void {
    const { truncation: _, ...others } = this.params;
    this.#setParams(on ? { ...others, truncation: "auto" } : others);
  }

  reset(): void {
    this.#setParams({});
  }

  savePreset(preset: Preset): void {
    this.#setPresets([...this.presets.filter(({ name }) => name !== preset.name), preset]);
  }

  deletePreset(name: string): void {
    this.#setPresets(this.presets.filter((preset) => preset.name !== name));
  }

  #setParams(params: Params): void {
    this.params = params;
    const name = `${this.prefix}params`;
    if (Object.keys(params).length === 0) this.storage.removeItem(name);
    else this.storage.setItem(name, JSON.stringify(params));
  }

  #setPresets(presets: readonly Preset[]): void {
    this.presets = presets;
    this.storage.setItem(`${this.prefix}presets`, JSON.stringify(presets));
  }
}

function isPreset(value: unknown): value is Preset {
  const preset = value as Preset | null;
  return typeof preset?.name === "string" && typeof preset.text === "string";
}

function read(stored: string | null): unknown {
  try {
    return JSON.parse(stored ?? "null");
  } catch {
    return null;
  }
}
