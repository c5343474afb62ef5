"""The demo's books: the notes of the killed processes, compared with the messages in the store.

The rules, which are the engine's promises:

* a message whose publish returned is in the store, unless its ack was called: *lost* counts those
  that are not;
* a message whose ack returned is never delivered again: *back* counts those messages;
* seq_ids rise with each publish, in each run the deliveries to each consumer rise, and the drain
  gives each publisher's messages in the order it sent them: *disorder* counts messages that break
  this;
* a body equals the published body: *altered* counts others;
* a seq_id names one message for ever: *repeated* counts seq_ids that name two.

A call that was under way when its process died may have taken effect or not; both are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qindex.cli.demo.log import ACKED, ACKING, DELIVERED, PUBLISHED, Log, body_of

Message = tuple[int, int]
"""Publisher and number."""
Drained = tuple[int, int, int, bool, bytes]
"""Publisher, number, seq_id, redelivered, body: a message as the last, orderly drain gave it."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The sums. ``unnoted``: in the store, but the process died before it had noted the publish.
    ``in_doubt``: the ack was under way when the process died."""

    published: int
    acknowledged: int
    drained: int
    redelivered: int
    in_doubt: int
    unnoted: int
    lost: int
    back: int
    disorder: int
    altered: int
    repeated: int

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.back or self.disorder or self.altered or self.repeated)


@dataclass(slots=True)
class Books:
    """Takes the log of one killed process after another, then the drain; see :meth:`balance`."""

    published: dict[Message, int] = field(default_factory=dict)
    acked: set[Message] = field(default_factory=set)
    acking: set[Message] = field(default_factory=set)
    seqs: dict[int, Message] = field(default_factory=dict)
    redelivered: int = 0
    back: int = 0
    disorder: int = 0
    repeated: int = 0

    def add_run(self, log: Log) -> None:
        """Take what one process had noted before it was killed."""
        last_of_publisher: dict[int, int] = {}
        last_of_consumer: dict[int, int] = {}
        handed_out: set[int] = set()
        for kind, thread, flags, number, seq in log.tolist():
            message = (thread, number)
            if kind == PUBLISHED:
                self._name(seq, message)
                self.published[message] = seq
                self.disorder += seq <= last_of_publisher.get(thread, -1)
                last_of_publisher[thread] = seq
            elif kind == DELIVERED:
                self._name(seq, message)
                self.redelivered += flags & 1
                self.back += message in self.acked
                # One consumer's deliveries rise; nothing is handed out twice in a run.
                consumer = flags >> 1
                late = seq <= last_of_consumer.get(consumer, -1)
                self.disorder += late or seq in handed_out
                last_of_consumer[consumer] = seq
                handed_out.add(seq)
            elif kind == ACKING:
                self.acking.add(message)
            elif kind == ACKED:
                self.acked.add(message)

    def _name(self, seq: int, message: Message) -> None:
        """Count a seq_id that named another message before, in any run."""
        self.repeated += self.seqs.setdefault(seq, message) != message

    def balance(self, drained: Iterable[Drained]) -> Balance:
        """Close the books with what the store held at the end."""
        left: set[Message] = set()
        altered = redelivered = back = disorder = 0
        last_seq = -1
        last_number: dict[int, int] = {}
        for thread, number, seq, again, body in drained:
            message = (thread, number)
            self._name(seq, message)
            left.add(message)
            redelivered += again
            back += message in self.acked
            altered += body != body_of(thread, number)
            disorder += seq <= last_seq or number <= last_number.get(thread, -1)
            last_seq, last_number[thread] = seq, number
        in_doubt = self.acking - self.acked
        return Balance(
            published=len(self.published),
            acknowledged=len(self.acked),
            drained=len(left),
            redelivered=self.redelivered + redelivered,
            in_doubt=len(in_doubt),
            unnoted=len((left | self.acked | in_doubt) - self.published.keys()),
            lost=len(self.published.keys() - left - self.acked - in_doubt),
            back=self.back + back,
            disorder=self.disorder + disorder,
            altered=altered,
            repeated=self.repeated,
        )
