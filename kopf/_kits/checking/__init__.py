"""
Checks of operators: with a disturbance, an operator must reach the same end state as without it.

A *course* is one run of an operator from its start to the deletion of all objects; messages for users call it a run. An
*undisturbed* course has no disturbance: other courses are compared with it. An operator is *at rest* when it has
written nothing for a while and retries no handler. A *testbed* is the environment of a course. These are the modules:

- ``plans``: one disturbance at one point of a course, and its file format;
- ``courses``: one course; ``testbeds``: where it takes place; ``disturbances``: what happens in it;
- ``end_states``: the comparison of the states of two courses; ``schema_edits``: edits that the schema permits;
- ``oracles``: decide whether a course is correct; ``agendas``: the plans to try, and their order;
- ``forks``: processes that run plans; ``checks``: a whole check, within a budget; ``reports``: output for users;
- ``chaos``: the fixture for pytest.
"""
