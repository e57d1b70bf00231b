"""Load for a chat server, and what comes of it: plan, drive, measure. `chatd bench` is its command.

    plan.py -> drive.py -> answers.py -> figures.py
                  |  talks to one of
              on_chatd.py, on_openai.py (both over sockets.py), on_engine.py (no server)

What decides and what computes is pure: all but `drive`, `sockets`, `trial` and those three.
"""
