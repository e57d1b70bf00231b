-- A database of schema 0001 as its own program left it. Never change this file.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE conversations (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        namespace TEXT NOT NULL,
        title TEXT NOT NULL,
        hidden INTEGER NOT NULL CHECK (hidden IN (0, 1)),
        tip_id TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        expires_at INTEGER,
        CHECK ((hidden = 1) = (expires_at IS NOT NULL))
    );
INSERT INTO "conversations" VALUES(1,'old1','ann','Oldest question',0,'old4',1800000002000000,1800000002000000,NULL);
CREATE TABLE engine_runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        outcome TEXT NOT NULL CHECK (outcome IN ('running', 'ended', 'died')),
        started_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        gpu_hit INTEGER NOT NULL,
        disk_hit INTEGER NOT NULL,
        computed INTEGER NOT NULL,
        generated INTEGER NOT NULL,
        steps INTEGER NOT NULL,
        preemptions INTEGER NOT NULL,
        recomputed INTEGER NOT NULL,
        evicted_pages INTEGER NOT NULL,
        CHECK (prompt_tokens = gpu_hit + disk_hit + computed)
    );
INSERT INTO "engine_runs" VALUES(1,'ended',1800000001000000,1800000004000000,38,20,10,8,10,2,0,0,0);
CREATE TABLE messages (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent_id TEXT,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        text TEXT NOT NULL,
        token_ids BLOB CHECK (length(token_ids) % 4 = 0),
        status TEXT NOT NULL
            CHECK (status IN ('streaming', 'completed', 'incomplete', 'cancelled', 'failed')),
        chain_key BLOB CHECK (length(chain_key) = 32),
        created_at INTEGER NOT NULL,
        UNIQUE (conversation_id, id),
        FOREIGN KEY (conversation_id, parent_id) REFERENCES messages (conversation_id, id),
        CHECK ((status = 'streaming') = (chain_key IS NULL)),
        CHECK (status = 'completed' OR role = 'assistant')
    );
INSERT INTO "messages" VALUES(1,'old2','old1',NULL,'system','Be old.',X'4200000065000000200000006F0000006C000000640000002E000000','completed',X'C61822CEE15BC3CF4F6373D08A9886FC0ADA17E2B2658355910FFFCCC6CBE2B5',1800000002000000);
INSERT INTO "messages" VALUES(2,'old3','old1','old2','user','Oldest question',X'4F0000006C00000064000000650000007300000074000000200000007100000075000000650000007300000074000000690000006F0000006E000000','completed',X'26ADF5A78F7E88AFA67352FAC16979E53FA06FB732177CD25CD3E3ABBECDE320',1800000002000000);
INSERT INTO "messages" VALUES(3,'old4','old1','old3','assistant','Old answer',X'4F0000006C0000006400000020000000610000006E00000073000000770000006500000072000000','completed',X'29091AFAFC9673DD9DAD87B199CDF7C928725D51E99F00B5F51275EBFB6F40C6',1800000002000000);
CREATE TABLE pieces (
        response_seq INTEGER NOT NULL REFERENCES responses (seq),
        from_seq INTEGER NOT NULL CHECK (from_seq >= 1),
        seq INTEGER NOT NULL CHECK (seq >= from_seq),
        text TEXT NOT NULL,
        token_ids BLOB NOT NULL CHECK (length(token_ids) % 4 = 0),
        piece_ends BLOB NOT NULL CHECK (length(piece_ends) = 4 * (seq - from_seq + 1)),
        PRIMARY KEY (response_seq, from_seq)
    ) WITHOUT ROWID
    ;
INSERT INTO "pieces" VALUES(1,1,2,'Old answer',X'4F0000006C0000006400000020000000610000006E00000073000000770000006500000072000000',X'030000000A000000');
CREATE TABLE price_books (
        version TEXT PRIMARY KEY NOT NULL,
        currency TEXT NOT NULL,
        valid_from TEXT NOT NULL,
        computed INTEGER NOT NULL CHECK (computed >= 0),
        gpu_hit INTEGER NOT NULL CHECK (gpu_hit >= 0),
        disk_hit INTEGER NOT NULL CHECK (disk_hit >= 0),
        generated INTEGER NOT NULL CHECK (generated >= 0)
    );
INSERT INTO "price_books" VALUES('default-2026-11','CNY','2026-11-01',1000000000,100000000,100000000,2000000000);
CREATE TABLE responses (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        run_id INTEGER NOT NULL REFERENCES engine_runs (id),
        namespace TEXT NOT NULL,
        idempotency_key TEXT,
        request_hash BLOB NOT NULL,
        conversation_id TEXT NOT NULL,
        user_message_id TEXT,
        message_id TEXT NOT NULL,
        base_len INTEGER NOT NULL CHECK (base_len >= 0),
        model TEXT NOT NULL,
        params_json TEXT NOT NULL,
        status TEXT NOT NULL
            CHECK (status IN ('open', 'completed', 'incomplete', 'cancelled', 'failed')),
        finish_reason TEXT
            CHECK (finish_reason IN ('end', 'stop', 'length', 'cancelled', 'failed')),
        error_code TEXT NOT NULL,
        error TEXT NOT NULL,
        prompt_len INTEGER NOT NULL CHECK (prompt_len >= 0),
        prompt_tokens INTEGER NOT NULL,
        gpu_hit INTEGER NOT NULL CHECK (gpu_hit >= 0),
        disk_hit INTEGER NOT NULL CHECK (disk_hit >= 0),
        computed INTEGER NOT NULL CHECK (computed >= 0),
        output_tokens INTEGER NOT NULL CHECK (output_tokens >= 0),
        delivered INTEGER NOT NULL CHECK (delivered >= 0),
        last_seq INTEGER NOT NULL CHECK (last_seq >= 0),
        preemptions INTEGER NOT NULL CHECK (preemptions >= 0),
        recomputed INTEGER NOT NULL CHECK (recomputed >= 0),
        queue_ms REAL,
        ttft_ms REAL,
        tpot_ms REAL,
        tokens_per_s REAL,
        total_ms REAL,
        opened_at INTEGER NOT NULL,
        admitted_at INTEGER,
        ended_at INTEGER,
        price_version TEXT NOT NULL REFERENCES price_books (version),
        gpu_hit_nano INTEGER,
        disk_hit_nano INTEGER,
        computed_nano INTEGER,
        output_nano INTEGER,
        without_cache_nano INTEGER,
        UNIQUE (namespace, idempotency_key),
        CHECK (prompt_tokens = gpu_hit + disk_hit + computed),
        CHECK (admitted_at IS NOT NULL OR (prompt_tokens = 0 AND output_tokens = 0)),
        CHECK ((status = 'open') = (ended_at IS NULL)),
        CHECK ((status = 'open') = (finish_reason IS NULL)),
        CHECK ((status = 'open') = (gpu_hit_nano IS NULL)),
        CHECK ((status = 'open') = (disk_hit_nano IS NULL)),
        CHECK ((status = 'open') = (computed_nano IS NULL)),
        CHECK ((status = 'open') = (output_nano IS NULL)),
        CHECK ((status = 'open') = (without_cache_nano IS NULL))
    );
INSERT INTO "responses" VALUES(1,'r-old',1,'ann','k-old',X'C6ACC8EAB34A1456BE5BC9E00C36207ED28190CD8683EED5773901092CA8BF83','old1','old3','old4',0,'toy','{}','completed','end','','',38,38,20,10,8,10,10,2,0,0,1.0,NULL,NULL,NULL,20.5,1800000002000000,1,2,'default-2026-11',2000,1000,8000,20000,58000);
CREATE INDEX conversations_listed ON conversations (namespace, hidden, updated_at, seq);
CREATE INDEX conversations_expiring ON conversations (expires_at) WHERE hidden = 1;
CREATE INDEX messages_children ON messages (conversation_id, parent_id);
CREATE INDEX messages_chain ON messages (chain_key);
CREATE INDEX responses_open ON responses (run_id) WHERE status = 'open';
CREATE INDEX responses_message ON responses (message_id);
CREATE INDEX responses_session ON responses (conversation_id);
CREATE TRIGGER responses_end_once BEFORE UPDATE ON responses
    WHEN old.status <> 'open' AND (
        new.status IS NOT old.status OR new.finish_reason IS NOT old.finish_reason
        OR new.output_tokens IS NOT old.output_tokens OR new.last_seq IS NOT old.last_seq
        OR new.ended_at IS NOT old.ended_at OR new.price_version IS NOT old.price_version
        OR new.gpu_hit_nano IS NOT old.gpu_hit_nano OR new.disk_hit_nano IS NOT old.disk_hit_nano
        OR new.computed_nano IS NOT old.computed_nano OR new.output_nano IS NOT old.output_nano
        OR new.without_cache_nano IS NOT old.without_cache_nano
    )
    BEGIN SELECT RAISE(ABORT, 'a response ends once'); END;
CREATE TRIGGER responses_buckets_freeze BEFORE UPDATE ON responses
    WHEN old.admitted_at IS NOT NULL AND (
        new.admitted_at IS NOT old.admitted_at OR new.gpu_hit <> old.gpu_hit
        OR new.disk_hit <> old.disk_hit OR new.computed <> old.computed
    )
    BEGIN SELECT RAISE(ABORT, 'the buckets of an admitted prompt never change'); END;
CREATE TRIGGER responses_stay BEFORE DELETE ON responses
    BEGIN SELECT RAISE(ABORT, 'the ledger keeps its rows'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('engine_runs',1);
INSERT INTO "sqlite_sequence" VALUES('conversations',1);
INSERT INTO "sqlite_sequence" VALUES('messages',3);
INSERT INTO "sqlite_sequence" VALUES('responses',1);
COMMIT;
