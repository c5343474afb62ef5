import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.index.IndexFile;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The real 4.9.3 store behind a pipe: one command a line on standard input, one answer a line on
 * standard output, fields separated by tabs. Arguments: directory, bytes of a CommitLog file, bytes
 * of a ConsumeQueue file, slots and entries of an IndexFile.
 */
public class RealStore {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static DefaultMessageStore store;

    public static void main(String[] args) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try {
            store = open(args, FlushDiskType.ASYNC_FLUSH);
            say("open");
            Bench.args = args;
            String line;
            while ((line = in.readLine()) != null && !line.equals("close")) {
                say(answer(line.split("\t", -1)));
            }
            if (line != null) {
                store.shutdown();
                say("closed");
            }
        } catch (Throwable error) {
            say("error\t" + error);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(String line) throws Exception {
        System.out.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }

    private static DefaultMessageStore open(String[] args, FlushDiskType flush)
        throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setFlushDiskType(flush);
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        config.setHaListenPort(0);
        config.setDiskMaxUsedSpaceRatio(99);
        BrokerConfig broker = new BrokerConfig();
        broker.setLongPollingEnable(false);
        DefaultMessageStore opened = new DefaultMessageStore(
            config, new BrokerStatsManager("test", false), null, broker);
        listenOnLoopback(opened);
        if (!opened.load()) {
            throw new IllegalStateException("load() refused the directory");
        }
        opened.start();
        catchUp(opened);
        return opened;
    }

    /** The store's replication service would listen on every interface. */
    private static void listenOnLoopback(DefaultMessageStore opened) throws Exception {
        Object accept = field(field(opened, "haService"), "acceptSocketService");
        Field address = accept.getClass().getDeclaredField("socketAddressListen");
        address.setAccessible(true);
        address.set(accept, new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
    }

    private static Object field(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    /** Until queues and index hold every message that was put. */
    private static void catchUp(DefaultMessageStore opened) {
        while (opened.dispatchBehindBytes() > 0) {
            LockSupport.parkNanos(100_000);
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "put":
                return put(words[1], Integer.parseInt(words[2]), words[3], words[4], words[5]);
            case "get":
                return get(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
            case "query":
                return query(words[1], words[2], Integer.parseInt(words[3]));
            case "lookup":
                MessageExt found = store.lookMessageByOffset(Long.parseLong(words[1]));
                return found == null ? "none" : describe(found);
            case "bounds":
                int queueId = Integer.parseInt(words[2]);
                return store.getMinOffsetInQueue(words[1], queueId)
                    + "\t" + store.getMaxOffsetInQueue(words[1], queueId);
            case "end":
                return Long.toString(store.getMaxPhyOffset());
            case "bench":
                return Bench.run(words);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    static MessageExtBrokerInner message(String topic, int queueId, String keys, String unique,
        byte[] body, long born) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body);
        if (!keys.isEmpty()) {
            message.setKeys(keys);
        }
        if (!unique.isEmpty()) {
            MessageAccessor.putProperty(
                message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, unique);
        }
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(born);
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        return message;
    }

    private static String put(String topic, int queueId, String keys, String unique, String body)
        throws Exception {
        PutMessageResult result = store.putMessage(
            message(topic, queueId, keys, unique, body.getBytes(StandardCharsets.UTF_8),
                System.currentTimeMillis()));
        catchUp(store);
        return result.getPutMessageStatus()
            + "\t" + result.getAppendMessageResult().getWroteOffset();
    }

    private static String get(String topic, int queueId, long offset) {
        GetMessageResult result = store.getMessage("g", topic, queueId, offset, 32, null);
        StringBuilder text = new StringBuilder();
        text.append(result.getStatus()).append('\t').append(result.getNextBeginOffset());
        for (SelectMappedBufferResult part : result.getMessageMapedList()) {
            text.append('\t').append(part.getStartOffset());
        }
        result.release();
        return text.toString();
    }

    private static String query(String topic, String key, int max) {
        QueryMessageResult result = store.queryMessage(topic, key, max, 0, Long.MAX_VALUE);
        StringBuilder text = new StringBuilder("found");
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            text.append('\t').append(MessageDecoder.decode(buffer).getCommitLogOffset());
        }
        result.release();
        return text.toString();
    }

    private static String describe(MessageExt message) {
        return message.getTopic() + "\t" + message.getQueueId() + "\t" + message.getQueueOffset()
            + "\t" + message.getKeys() + "\t" + new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /**
     * What the benchmark asks. An answer is calls a second by the wall clock, microseconds of the
     * whole process's CPU time for each call (its dispatching and flushing threads included), and
     * what the calls gave, for the asker to check.
     *
     * Both sides of the comparison do the same: bodies, all different, and keys exist before the
     * clock starts, as what a broker took off the wire does; a message and its properties string
     * are made anew for each put; one thread calls; and the clock stops when everything can be
     * found, so the store's own dispatching thread has to have caught up.
     */
    static final class Bench {
        static String[] args;
        /** What is read has to be there as a caller would have it, not optimized away. */
        static final MessageExt[] answer = new MessageExt[64];

        static String run(String[] words) throws Exception {
            int count = words.length > 2 ? Integer.parseInt(words[2]) : 0;
            switch (words[1]) {
                case "fresh":
                    return fresh(words[3], FlushDiskType.valueOf(words[4]));
                case "put":
                    return puts(count, false, "P");
                case "put-keys":
                    return puts(count, true, words[3]);
                case "get":
                    return gets(count, words[3]);
                case "query":
                    return queries(count, Integer.parseInt(words[3]));
                case "index":
                    return index(count, words[3]);
                case "sync":
                    return syncs(count, Double.parseDouble(words[3]));
                default:
                    throw new IllegalArgumentException(words[1]);
            }
        }

        /** Go on with a new, empty store in the same, warm virtual machine. */
        static String fresh(String directory, FlushDiskType flush) throws Exception {
            store.shutdown();
            store.destroy();
            args[0] = directory;
            store = open(args, flush);
            return "open";
        }

        static final class Clock {
            private long cpu = cpuNanos();
            private long start = System.nanoTime();
            private long wallTotal;
            private long cpuTotal;

            static long cpuNanos() {
                return ((com.sun.management.OperatingSystemMXBean)
                    ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
            }

            void resume() {
                cpu = cpuNanos();
                start = System.nanoTime();
            }

            void pause() {
                wallTotal += System.nanoTime() - start;
                cpuTotal += cpuNanos() - cpu;
            }

            String rate(long count, long seen) {
                return count * 1e9 / wallTotal + "\t" + cpuTotal / 1e3 / count + "\t" + seen;
            }
        }

        static byte[][] bodies(int count) {
            Random random = new Random(4);
            byte[][] bodies = new byte[count][100];
            for (byte[] body : bodies) {
                random.nextBytes(body);
            }
            return bodies;
        }

        static String puts(int count, boolean keys, String topic) throws Exception {
            byte[][] bodies = bodies(count);
            String[] names = new String[count];
            String[] unique = new String[count];
            for (int i = 0; i < count; i++) {
                names[i] = keys ? "order-" + i : "";
                unique[i] = keys ? String.format("%032X", i) : "";
            }
            long born = System.currentTimeMillis();
            long before = store.getMaxOffsetInQueue(topic, 0);
            Clock clock = new Clock();
            for (int i = 0; i < count; i++) {
                put(message(topic, 0, names[i], unique[i], bodies[i], born));
            }
            catchUp(store);
            clock.pause();
            return clock.rate(count, store.getMaxOffsetInQueue(topic, 0) - before);
        }

        static void put(MessageExtBrokerInner message) {
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                throw new IllegalStateException(result.getPutMessageStatus().toString());
            }
        }

        static String gets(int count, String topic) {
            Clock clock = new Clock();
            long offset = 0;
            int seen = 0;
            long sum = 0;
            while (seen < count) {
                GetMessageResult result = store.getMessage("g", topic, 0, offset, 32, null);
                if (result.getMessageMapedList().isEmpty()) {
                    offset = 0;
                    result.release();
                    continue;
                }
                int place = 0;
                for (SelectMappedBufferResult part : result.getMessageMapedList()) {
                    answer[place] = MessageDecoder.decode(part.getByteBuffer());
                    sum += answer[place++].getBody().length;
                    seen++;
                }
                offset = result.getNextBeginOffset();
                result.release();
            }
            clock.pause();
            return clock.rate(seen, sum / 100);
        }

        static String queries(int count, int keys) {
            Random random = new Random(1);
            String[] names = new String[count];
            for (int i = 0; i < count; i++) {
                names[i] = "order-" + random.nextInt(keys);
            }
            Clock clock = new Clock();
            int hits = 0;
            for (String name : names) {
                QueryMessageResult result = store.queryMessage("K", name, 32, 0, Long.MAX_VALUE);
                int place = 0;
                for (ByteBuffer buffer : result.getMessageBufferList()) {
                    answer[place] = MessageDecoder.decode(buffer);
                    hits += answer[place++].getKeys().equals(name) ? 1 : 0;
                }
                result.release();
            }
            clock.pause();
            return clock.rate(count, hits);
        }

        /** The keys are made a million at a time, between the timed parts. */
        static String index(int count, String path) throws Exception {
            IndexFile file = new IndexFile(path, 5_000_000, 20_000_000, 0, 0);
            Random random = new Random(2);
            Clock timed = new Clock();
            for (int from = 0; from < count; from += 1_000_000) {
                String[] keys = new String[Math.min(1_000_000, count - from)];
                for (int i = 0; i < keys.length; i++) {
                    keys[i] = "TopicTest#" + Long.toHexString(random.nextLong());
                }
                timed.resume();
                for (int i = 0; i < keys.length; i++) {
                    long number = from + i;
                    file.putKey(keys[i], number * 200L, 1_700_000_000_000L + number);
                }
                timed.pause();
            }
            String answer = timed.rate(count, file.getEndPhyOffset() / 200 + 1);
            file.destroy(0);
            return answer;
        }

        /** Puts of several threads until the time is over, each on disk when it returns. */
        static String syncs(int threads, double seconds) throws Exception {
            AtomicLong done = new AtomicLong();
            byte[] body = bodies(1)[0];
            Clock clock = new Clock();
            long end = System.nanoTime() + (long) (seconds * 1e9);
            Thread[] callers = new Thread[threads];
            for (int i = 0; i < threads; i++) {
                callers[i] = new Thread(() -> {
                    while (System.nanoTime() < end) {
                        put(message("S", 0, "", "", body, 1L));
                        done.incrementAndGet();
                    }
                });
                callers[i].start();
            }
            for (Thread caller : callers) {
                caller.join();
            }
            clock.pause();
            return clock.rate(done.get(), done.get());
        }
    }
}
