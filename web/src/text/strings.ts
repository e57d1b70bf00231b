/**
 * Every word the page shows. Another language is another object of type `Strings`.
 *
 * Numbers arrive formatted: see format.ts.
 */

const en = {
  locale: "en",
  appName: "chatd",
  newChat: "New chat",
  conversations: "Conversations",
  openSidebar: "Show conversations",
  closeSidebar: "Hide conversations",
  untitled: "Untitled",
  noConversations: "Nothing here yet. Your chats will be kept on this server.",
  listFailed: "The list could not be loaded.",
  loadMore: "Show older",
  loadingList: "Loading conversations",
  today: "Today",
  yesterday: "Yesterday",
  lastWeek: "Previous 7 days",
  older: "Older",
  rename: "Rename",
  delete: "Delete",
  renameLabel: "Title of the conversation",
  actionsFor: (title: string) => `Actions for “${title}”`,
  deleted: (title: string) => `Deleted “${title}”`,
  undo: "Undo",
  dismiss: "Dismiss",
  answering: "Answering",

  emptyTitle: "What shall we talk about?",
  emptyText: "Later turns reuse the work of earlier ones. Each answer shows how much, and what it cost.",
  suggestions: [
    "Explain what a KV cache is, in three sentences.",
    "Write a haiku about a server that never forgets.",
    "Give me a plan for learning to juggle in a week.",
  ],
  conversationLoading: "Loading the conversation",
  conversationMissing: "This conversation does not exist, or was deleted.",
  conversationFailed: "The conversation could not be loaded.",
  systemPrompt: "System prompt",

  messageLabel: "Message",
  messagePlaceholder: "Write a message",
  send: "Send",
  stop: "Stop",
  stopHint: "Stop (Esc)",
  composerHint: "Enter sends, Shift + Enter makes a new line",
  jump: "Jump to the newest text",

  you: "You",
  assistant: "Answer",
  copy: "Copy",
  copied: "Copied",
  copyCode: "Copy code",
  edit: "Edit",
  editLabel: "Edit your message",
  sendEdit: "Send",
  cancel: "Cancel",
  regenerate: "Answer again",
  continue: "Continue",
  previousBranch: "Previous version",
  nextBranch: "Next version",
  branchOf: (at: string, count: string) => `Version ${at} of ${count}`,

  sending: "Sending",
  waitingForConnection: "Waiting for the connection",
  waitingForModel: "Waiting for the model",
  queued: (position: string) => `In the queue, number ${position}`,
  queuedNext: "Next in the queue",
  reading: (done: string, total: string) => `Reading ${done} of ${total} tokens`,
  readingReused: (reused: string) => `${reused} reused`,
  starting: "Starting",
  stopping: "Stopping",

  turnsLeftOut: (turns: number, count: string) =>
    `${turns === 1 ? "The oldest turn" : `The oldest ${count} turns`} of this conversation no longer fit: the model did not see them.`,
  endedByLength: "The answer reached its length limit.",
  endedByCancel: "Stopped.",
  endedEmpty: "The answer is empty.",
  endedByFailure: "The answer broke off.",

  numbers: "Figures of this answer",
  promptTokens: (count: string) => `${count} prompt`,
  reusedTokens: (count: string, share: string) => `${count} reused (${share})`,
  outputTokens: (count: string) => `${count} out`,
  firstToken: (time: string) => `${time} to first token`,
  tokensPerSecond: (rate: string) => `${rate} tok/s`,
  saved: (money: string) => `saved ${money}`,
  promptDetail: (gpu: string, disk: string, computed: string) =>
    `Prompt tokens: ${gpu} reused from memory, ${disk} from disk, ${computed} computed`,
  costDetail: (total: string, without: string) => `${total}; without reuse it would have been ${without}`,
  timeDetail: (queued: string, total: string) => `${queued} in the queue, ${total} in all`,

  connecting: "Connecting",
  connected: "Connected",
  reconnecting: "Connection lost. Reconnecting",
  answersGoOn: "Answers under way go on if the server still runs.",
  retryNow: "Retry now",
  modelLoading: (share: string) => `Loading the model: ${share}`,
  stalled: "The model is not responding.",
  draining: "The server is shutting down. Answers under way may end early.",
  model: (name: string, context: string) => `${name}, ${context} tokens of context`,

  announceStarted: "The answer has started.",
  announceEnded: "The answer is complete.",
  announceStopped: "The answer was stopped.",
  announceFailed: "The answer failed.",
  announceSwitched: (at: string, count: string) => `Showing version ${at} of ${count}.`,

  unreachable: "The server cannot be reached.",
  retryAnswer: "Try again",
};

export type Strings = typeof en;

export const t: Strings = en;
