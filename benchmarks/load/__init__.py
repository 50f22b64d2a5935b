"""Load for a server whose cores it shares: requests are bytes made before, answers are barely looked at.

``messages`` HTTP without IO; ``kept`` one connection that never blocks; ``closed``, ``arrivals`` and
``paced`` the kinds of load; ``child`` the process that makes it; ``figures`` what becomes of the delays;
``shared_address`` a program that plays many clients of one address.
"""
