"""
Checks of operators: with a disturbance, an operator must reach the same end state as without it.

- ``plans``: one disturbance at one point of a course, and its file format;
- ``courses``: one run of an operator in virtual time; ``disturbances`` happen in it;
- ``end_states``: states of different courses, made comparable; ``schema_edits``: edits that the schema permits;
- ``oracles``: decide whether a course is correct; ``agendas``: the plans to try, and their order;
- ``forks``: processes that run plans; ``checks``: a whole check, within a budget; ``reports``: output for users;
- ``chaos``: the fixture for pytest.
"""
