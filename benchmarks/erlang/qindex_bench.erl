%% Calls RabbitMQ's own index and message store modules, without a broker and without AMQP.
%%
%% Started by benchmarks/erlang_vm.py with the node's code in its path, with one argument: the
%% directory that stands for the node's. It reads one command a line and answers with one line,
%% "Name Wall Cpu ..." or "error Reason"; times are microseconds, CPU is of the whole VM. A command
%% runs in a process of its own, as a queue does.
-module(qindex_bench).
-export([main/1]).

-define(INDEX, rabbit_queue_index).
-define(STORE, rabbit_msg_store).

main([Directory]) ->
    ok = logger:set_primary_config(level, none),
    ok = application:load(rabbit),
    ok = application:load(mnesia),
    ok = application:set_env(mnesia, dir, Directory),
    {ok, _} = file_handle_cache:start_link(),
    {ok, _} = pg:start_link(),
    {ok, _} = worker_pool_sup:start_link(),
    loop().

loop() ->
    case io:get_line("") of
        Line when is_list(Line) ->
            [Command | Words] = string:lexemes(Line, " \n"),
            Self = self(),
            {Pid, Monitor} =
                spawn_monitor(fun() -> Self ! {self(), run(Command, Words)} end),
            receive
                {Pid, Figures} -> tell(Figures);
                {'DOWN', Monitor, process, Pid, Reason} ->
                    io:format("error ~s~n", [io_lib:format("~0P", [Reason, 20])])
            end,
            demonitor(Monitor, [flush]),
            loop();
        _ ->
            erlang:halt(0)
    end.

tell(Figures) ->
    Words = [io_lib:format("~s ~B ~B", [Name, Wall, Cpu]) || {Name, {Wall, Cpu}} <- Figures],
    io:format("~s~n", [lists:join(" ", Words)]).

%% Publish and deliver; the same and ack; then each ack alone of what was delivered before.
run("rates", [Queue, Count0, Size0]) ->
    Count = list_to_integer(Count0),
    Messages = messages(Count, list_to_integer(Size0)),
    First = index(Queue),
    {Deliver, Delivered} = timed(fun() -> publish_deliver(Messages, 0, First) end),
    {Ack, Acked} = timed(fun() -> ack_each(0, Count, Delivered) end),
    ?INDEX:delete_and_terminate(Acked),
    Second = index(Queue),
    {All, Done} = timed(fun() -> publish_deliver_ack(Messages, 0, Second) end),
    ?INDEX:delete_and_terminate(Done),
    [{"publish_deliver", Deliver}, {"ack", Ack}, {"publish_deliver_ack", All}];
%% The same in lists as long as Batch, where the module takes lists: deliver and ack do.
run("batches", [Queue, Count0, Size0, Batch0]) ->
    Count = list_to_integer(Count0),
    Batch = list_to_integer(Batch0),
    Messages = messages(Count, list_to_integer(Size0)),
    First = index(Queue),
    {Deliver, Delivered} = timed(fun() -> batches_deliver(Messages, 0, Batch, First) end),
    {Ack, Acked} = timed(fun() -> ack_batches(0, Count, Batch, Delivered) end),
    ?INDEX:delete_and_terminate(Acked),
    [{"publish_deliver", Deliver}, {"ack", Ack}];
%% Fill a queue, and leave it as a kill would.
run("fill", [Queue, Count, Size]) ->
    Messages = messages(list_to_integer(Count), list_to_integer(Size)),
    {Fill, _} = timed(fun() -> ?INDEX:sync(publish(Messages, 0, index(Queue))) end),
    [{"fill", Fill}];
%% What a node does with a queue after a kill: walk its index for the reference counts of the message
%% store, in a process of its own, then recover it.
run("recover", [Queue]) ->
    {Walk, ok} = timed(fun() ->
        {ok, Gatherer} = gatherer:start_link(),
        ok = gatherer:fork(Gatherer),
        {Pid, Monitor} = spawn_monitor(fun() ->
            ?INDEX:queue_index_walker_reader(name(Queue), Gatherer)
        end),
        ok = gathered(Gatherer),
        receive {'DOWN', Monitor, process, Pid, normal} -> ok end
    end),
    {Recover, Recovered} = timed(fun() ->
        ?INDEX:recover(name(Queue), non_clean_shutdown, false, fun(_) -> true end,
                       fun(_) -> ok end, fun(_) -> ok end, main)
    end),
    [{"walk", Walk}, {"recover", Recover}, {"entries", {element(1, Recovered), 0}}];
%% Write messages into the shared store, read them all, remove them all.
run("store", [Directory, Count0, Size0]) ->
    Count = list_to_integer(Count0),
    Size = list_to_integer(Size0),
    %% Distinct binaries outside the heap, as a broker has them.
    Messages = [{<<Id:128>>, message(Id, Size)} || Id <- lists:seq(1, Count)],
    {ok, Server} = ?STORE:start_link(
        <<"/">>, msg_store_persistent, Directory, [], {fun(ok) -> finished end, ok}),
    Client = ?STORE:client_init(Server, <<"bench">>, fun(_, _) -> ok end, fun() -> ok end),
    {Write, _} = timed(fun() ->
        [ok = ?STORE:write(Id, Message, Client) || {Id, Message} <- Messages],
        ?STORE:contains(<<0:128>>, Client)
    end),
    {Read, Last} = timed(fun() ->
        lists:foldl(fun({Id, Message}, C) ->
            {{ok, Message}, C1} = ?STORE:read(Id, C),
            C1
        end, Client, Messages)
    end),
    {Remove, _} = timed(fun() ->
        [?STORE:remove([Id], Last) || {Id, _} <- Messages],
        ?STORE:contains(<<0:128>>, Last)
    end),
    ?STORE:client_delete_and_terminate(Last),
    gen_server2:stop(Server),
    [{"store_write", Write}, {"store_read", Read}, {"store_remove", Remove}].

gathered(Gatherer) ->
    case gatherer:out(Gatherer) of
        empty -> ok;
        {value, _} -> gathered(Gatherer)
    end.

timed(Work) ->
    {Cpu, _} = statistics(runtime),
    Before = erlang:monotonic_time(microsecond),
    Result = Work(),
    Wall = erlang:monotonic_time(microsecond) - Before,
    {CpuNow, _} = statistics(runtime),
    {{Wall, (CpuNow - Cpu) * 1000}, Result}.

name(Queue) -> {resource, <<"/">>, queue, list_to_binary(Queue)}.

index(Queue) -> ?INDEX:init(name(Queue), fun(_) -> ok end, fun(_) -> ok end).

messages(Count, Size) -> [message(Seq, Size) || Seq <- lists:seq(0, Count - 1)].

message(Seq, Size) ->
    Body = <<Seq:64, 0:(Size - 8)/unit:8>>,
    Content = {content, 60, none, <<16, 0, 2>>, rabbit_framing_amqp_0_9_1, [Body]},
    {basic_message, {resource, <<"/">>, exchange, <<>>}, [<<"bench">>], Content,
     <<Seq:128>>, true}.

publish_one(Message, Seq, State) ->
    Properties = {message_properties, undefined, false, 100},
    ?INDEX:publish(Message, Seq, ?INDEX, Properties, true, infinity, State).

publish([Message | Rest], Seq, State) -> publish(Rest, Seq + 1, publish_one(Message, Seq, State));
publish([], _, State) -> State.

deliver(Seqs, State) ->
    ?INDEX:deliver(Seqs, State).

ack(Seqs, State) ->
    {_, Next} = ?INDEX:ack(Seqs, State),
    Next.

publish_deliver([Message | Rest], Seq, State) ->
    publish_deliver(Rest, Seq + 1, deliver([Seq], publish_one(Message, Seq, State)));
publish_deliver([], _, State) -> State.

publish_deliver_ack([Message | Rest], Seq, State) ->
    Delivered = deliver([Seq], publish_one(Message, Seq, State)),
    publish_deliver_ack(Rest, Seq + 1, ack([Seq], Delivered));
publish_deliver_ack([], _, State) -> State.

ack_each(Count, Count, State) -> State;
ack_each(Seq, Count, State) -> ack_each(Seq + 1, Count, ack([Seq], State)).

batches_deliver([], _, _, State) -> State;
batches_deliver(Messages, Seq, Batch, State) ->
    {Now, Later} = lists:split(min(Batch, length(Messages)), Messages),
    Published = publish(Now, Seq, State),
    Next = Seq + length(Now),
    batches_deliver(Later, Next, Batch, deliver(lists:seq(Seq, Next - 1), Published)).

ack_batches(Count, Count, _, State) -> State;
ack_batches(Seq, Count, Batch, State) ->
    Next = min(Seq + Batch, Count),
    ack_batches(Next, Count, Batch, ack(lists:seq(Seq, Next - 1), State)).
