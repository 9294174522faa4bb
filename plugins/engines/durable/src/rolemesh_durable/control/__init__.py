"""Communication with a master: requests and answers, following a job, its history."""
