"""Questions and answers: what a change at one unit does to another, what would have happened, who moved what."""
