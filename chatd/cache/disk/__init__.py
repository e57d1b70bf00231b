"""The disk tier: blocks of KV on disk, found again after a restart, and never wrong.

One folder (0700) holds ``lock``, ``secret`` (the key of all hashes), ``rules.json`` (pins and TTLs),
``recency`` (when records were used last: a hint) and the segments, ``00000001.seg`` and on (see `segment`).
The index is in memory only and is made anew from the segments' headers at every start, so nothing can
disagree with it: 100,000 records take 0.5 s.

What is written in which order, what is synced when, and what is left by a crash of the process (what was
written is there, in order) and by a power cut (of what was not synced any part may be lost or torn):

- **A record** is its body, then its header: one write of 512 bytes, which is the whole commit. Acknowledged
  (`BlockWritten`) means written, not synced. A crash before the header leaves an empty slot, and at the end
  of a file a tail, which the next start cuts off. A power cut may lose it, or leave its header without its
  body: the header's checksum of the body tells, when it is read, and that is a counted miss.
- **A removal** is 512 zeros over the header. Evictions are not synced: a power cut may bring the record back.
  What was removed on request (`forget`, `clear`) is synced before it is acknowledged. Its body stays in the
  file until the slot is used again, or until the file shrinks or goes.
- **A slot used again** is a removal, then a record. A power cut may mix the two: then some header's checksum
  does not fit the body, as above.
- **A new segment** is a table of zeros, then its label. Without a whole label the file is removed at start.
- **Moving a record** out of a sparse segment: the copy is written and synced, then the original removed. A
  crash between leaves two equal records on disk: the start takes one and empties the other's slot. Memory
  never has more than one.
- **A segment that goes** is one unlink; shrinking is one truncate, of slots that hold nothing.
- **secret, rules.json, recency** are written under another name, synced, renamed, and the folder synced: old
  or new, never a part. The secret is there before the first record. If it is damaged another is made and all
  records go, since none can be found any more. Damaged rules are counted and are none; they are saved by the
  time `pin` and the like have been carried out. ``recency`` is saved once a minute and at the end.
- **Syncing** (fdatasync of changed segments, then of the folder for new and gone names) comes once a second
  while the worker has nothing to do, after every 32 MiB written, and at the end. So the death of the process
  loses nothing that was acknowledged, and a power cut what came in the last second, or the last 32 MiB.

A write that fails (ENOSPC, EDQUOT, EIO, ...) leaves no record: no header was written, or zeros are written
over it, and what was appended is cut off again. If even the zeros are refused the slot is not used, and they
are tried again.
"""
