"""Codecs for what RabbitMQ nodes, 3.10 to 4.3, keep beside and inside their queue index files.

Message records (Erlang external terms), AMQP message properties, directory names, the vhost's
``.config``, and the terms of a clean shutdown. Every function works on bytes; none opens a file.
"""
