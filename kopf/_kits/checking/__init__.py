"""
Checks of operators: what an operator comes to when it is disturbed must be what it comes to without disturbances.

- ``plans``: one disturbance at one point of the course, as it is written to a file;
- ``courses``: one run of an operator in virtual time; ``disturbances`` happen in it;
- ``end_states``: states of different runs, made comparable; ``schema_edits``: what the schema lets users write;
- ``oracles``: whether a course is right; ``agendas``: which plans are tried, and in which order;
- ``forks``: processes in which plans are run; ``checks``: all of it, within a budget; ``reports``: what users see;
- ``chaos``: the fixture for pytest.
"""
