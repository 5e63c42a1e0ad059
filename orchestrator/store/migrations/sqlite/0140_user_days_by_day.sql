-- What users have used on a day is found without reading every day of every user.
CREATE INDEX user_days_by_day ON user_days (day);
