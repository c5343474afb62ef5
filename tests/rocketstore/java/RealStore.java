import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Random;
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
            store = open(args);
            say("open");
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

    private static DefaultMessageStore open(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
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

    private static void catchUp(DefaultMessageStore opened) throws Exception {
        while (opened.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
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
        byte[] body) {
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
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        return message;
    }

    private static String put(String topic, int queueId, String keys, String unique, String body)
        throws Exception {
        PutMessageResult result = store.putMessage(
            message(topic, queueId, keys, unique, body.getBytes(StandardCharsets.UTF_8)));
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

    /** Rates of the real store, in calls a second, after warming up on the same calls. */
    static final class Bench {
        private static int keysMade = 0;

        static String run(String[] words) throws Exception {
            int count = Integer.parseInt(words[2]);
            switch (words[1]) {
                case "put":
                    return rate(count, puts(count, false, "P"));
                case "put-keys":
                    return rate(count, puts(count, true, "K"));
                case "get":
                    return gets(count);
                case "query":
                    return queries(count);
                case "index":
                    return index(count, words[3]);
                default:
                    throw new IllegalArgumentException(words[1]);
            }
        }

        static String rate(int count, long nanos) {
            return Double.toString(count * 1e9 / nanos);
        }

        static long puts(int count, boolean keys, String topic) throws Exception {
            byte[] body = new byte[100];
            String[] names = new String[count];
            String[] unique = new String[count];
            for (int i = 0; i < count; i++) {
                names[i] = keys ? "order-" + keysMade++ : "";
                unique[i] = keys ? String.format("%032X", i) : "";
            }
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                // As a caller must: a message and its properties string are made for each put.
                PutMessageResult result =
                    store.putMessage(message(topic, 0, names[i], unique[i], body));
                if (!result.isOk()) {
                    throw new IllegalStateException(result.getPutMessageStatus().toString());
                }
            }
            catchUp(store);
            return System.nanoTime() - start;
        }

        static String gets(int count) {
            long start = System.nanoTime();
            long offset = 0;
            int seen = 0;
            long sum = 0;
            while (seen < count) {
                GetMessageResult result = store.getMessage("g", "P", 0, offset, 32, null);
                if (result.getMessageMapedList().isEmpty()) {
                    offset = 0;
                    result.release();
                    continue;
                }
                for (SelectMappedBufferResult part : result.getMessageMapedList()) {
                    sum += MessageDecoder.decode(part.getByteBuffer()).getBody().length;
                    seen++;
                }
                offset = result.getNextBeginOffset();
                result.release();
            }
            return rate(seen, System.nanoTime() - start) + "\t" + sum;
        }

        static String queries(int count) {
            Random random = new Random(1);
            long start = System.nanoTime();
            int hits = 0;
            for (int i = 0; i < count; i++) {
                QueryMessageResult result = store.queryMessage(
                    "K", "order-" + random.nextInt(keysMade), 32, 0, Long.MAX_VALUE);
                for (ByteBuffer buffer : result.getMessageBufferList()) {
                    hits += MessageDecoder.decode(buffer).getKeys().isEmpty() ? 0 : 1;
                }
                result.release();
            }
            return rate(count, System.nanoTime() - start) + "\t" + hits;
        }

        static String index(int count, String path) throws Exception {
            IndexFile file = new IndexFile(path, 5_000_000, 20_000_000, 0, 0);
            Random random = new Random(2);
            String[] keys = new String[count];
            for (int i = 0; i < count; i++) {
                keys[i] = "TopicTest#" + Long.toHexString(random.nextLong());
            }
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                file.putKey(keys[i], i * 200L, 1_700_000_000_000L + i);
            }
            long nanos = System.nanoTime() - start;
            file.destroy(0);
            return rate(count, nanos);
        }
    }
}
