"""
Virtual time: operators and the sandbox in one event loop, whose clock jumps to the next timer when nothing is ready.

- ``simulations``: one simulation combines all of the following; the sandbox opens it, and runs coroutines in it;
- ``seams``: the functions of the standard library that read clocks, sleep, draw random numbers, and start threads;
- ``virtual_loops``: the event loop, with connections in memory (``memory_networks``);
- ``blocking_sockets``: the sockets of blocking clients, in threads;
- ``turns``: threads that run one at a time;
- ``virtual_clocks``: the clock, and the error about actions that are impossible in virtual time.
"""
