"""Codecs for what a RabbitMQ 3.10 node keeps beside and inside its queue index files.

Message records (Erlang external terms), AMQP message properties, directory names, the vhost's
``.config``, and the terms of a clean shutdown. Every function works on bytes; none opens a file.
"""
