-- Whether the message is a command that is shown and has not been done: its request may have failed after it was stored.
ALTER TABLE chat_messages ADD COLUMN command_pending BOOLEAN NOT NULL DEFAULT FALSE;
