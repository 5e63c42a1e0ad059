-- What a model call asked for, so that its name is not taken for another question. None for calls from before.

ALTER TABLE llm_calls ADD COLUMN request_digest TEXT;
