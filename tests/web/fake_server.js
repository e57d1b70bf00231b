// A server within the page that answers with the question, a character a delta.
// A frame is a task of its own and as short as can be: each piece is painted by itself.
const tasks = new MessageChannel(), waiting = [];
tasks.port1.onmessage = () => waiting.shift()();
const soon = (action) => { waiting.push(action); tasks.port2.postMessage(0); };
window.requestAnimationFrame = (action) => { soon(() => action(performance.now())); return 0; };
window.chatdPaints = 0;

const usage = { prompt_tokens: 2, gpu_hit: 1, disk_hit: 0, computed: 1, output_tokens: 1, total_tokens: 3 };
const timings = { queue_ms: 0, ttft_ms: 1, tpot_ms: 1, tokens_per_s: 1, total_ms: 1 };
const cost = { currency: "CNY", total_nano: 1, without_cache_nano: 1, saved_nano: 0, prompt_nano: 1, output_nano: 0, price_version: "x" };
let made = 0;

window.WebSocket = class {
  constructor() { soon(() => this.onopen()); }
  close() {}
  say(event) { this.onmessage({ data: JSON.stringify(event) }); }
  send(frame) {
    const event = JSON.parse(frame);
    if (event.type === "session.hello")
      soon(() => this.say({ type: "session.created", session_id: "s", model: "fake", context_length: 4096, version: "x", heartbeat_s: 60, currency: "CNY", temperature: 0.3 }));
    if (event.type === "response.create") soon(() => this.answer(event));
  }
  answer({ input, idempotency_key }) {
    made += 1;
    const ids = { response_id: `r${made}`, conversation_id: "c", message_id: `a${made}` };
    this.say({ type: "response.created", ...ids, idempotency_key, user_message_id: `u${made}`, dropped_turns: 0, miss: "" });
    const pieces = Array.from(input);
    const next = (at) => {
      if (at === pieces.length)
        return this.say({ type: "response.completed", ...ids, finish_reason: "end", last_seq: at, usage, timings, cost });
      this.say({ type: "response.output_text.delta", ...ids, from_seq: at + 1, seq: at + 1, delta: pieces[at] });
      window.chatdPaints += 1;
      soon(() => soon(() => next(at + 1))); // behind the frame that paints this one
    };
    next(0);
  }
};
