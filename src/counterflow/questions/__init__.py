"""Questions and answers: what a change at one unit does to another, what would have happened, who moved what.

A kind of question is one module of this package; ``registry`` lists them.
"""
