"""What tests share.

project          a folder with schedules.yaml, a database, and processes of yamlsched that work on them
fork_server      starts those processes quickly
handlers         handlers that misbehave, each in one way
crashes          handlers with effects, whose workers are killed at named points
example_crashes  the same for the example handlers
http_server      an HTTP server in a thread; monitoring.py and otlp.py stand for services
proxy            a network between a worker and its server
schedules        files of places, and what sync made of them
rows             rows as the product would write them
command_line     the command line, in this process and in another one
followers        a world of jobs that follow others, with a clock of its own
notes            jobs with targets of notifications, and the messages to them
embedded_database  projects with a database of their own, and processes that use it
database         temporary databases, and sessions that wait for each other
"""
