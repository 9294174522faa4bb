"""How others talk to a master: questions and answers, following a job, its history."""
