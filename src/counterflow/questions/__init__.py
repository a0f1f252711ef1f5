"""Questions and answers: what a change at one unit does to another, what would have happened, who moved what.

A kind of question is one module of this package; ``registry`` lists them.
"""

COMMANDS = {  # of the command line, with their short help; here, so that --help need not import the questions
    "whatif": "What would outputs do, or have done, with other inputs?",
    "paths": "Which ways does an effect take, directly and through other units?",
    "explain": "Who moved a unit's outputs in some rows?",
    "restore": "Which change of inputs would move outputs so far?",
    "forecast": "What will happen after the recording's last row?",
    "aggregate": "What if the joint effect of all other units on this one were another?",
}
