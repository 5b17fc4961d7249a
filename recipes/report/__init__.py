"""What people read of a run: metrics file, trajectories as text, progress line, picture, summary.

Everything here works on plain data and files, so that a report can be made again at any time,
on any machine, without ray, torch or skyrl.
"""
