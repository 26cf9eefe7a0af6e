/* Processes that meet over TCP: real processes and threads that stand for them. No device is needed. */
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

#include "comm/rendezvous.h"
#include "comm/rendezvous_frame.h"
#include "ranks.h"

enum { MAX_RANKS = 5 };

static tpi_rendezvous_desc desc_of(int rank, int ranks, int port)
{
    return (tpi_rendezvous_desc){.rank = rank, .ranks = ranks, .address = "127.0.0.1", .port = port,
                                 .timeout_ms = 20000};
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

typedef struct rank_case rank_case;
typedef tp_status (*rank_body)(rank_case *own, tpi_rendezvous *meeting);

struct rank_case {
    tpi_rendezvous_desc desc;
    rank_body body; /* NULL: opens and closes */
    tp_status opened, status;
    char message[TPI_RENDEZVOUS_TEXT + 64];
};

static void run_case(rank_case *own)
{
    tpi_rendezvous *meeting;
    own->opened = own->status = tpi_rendezvous_open(&own->desc, &meeting);
    if (own->opened == TP_OK && own->body)
        own->status = own->body(own, meeting);
    snprintf(own->message, sizeof own->message, "%s", own->status == TP_OK ? "" : tp_last_message());
    if (own->opened == TP_OK)
        tpi_rendezvous_close(meeting);
}

static void *run_thread(void *pointer)
{
    run_case(pointer);
    return NULL;
}

static void run_threads(rank_case *cases, int count)
{
    pthread_t threads[MAX_RANKS];
    for (int i = 0; i < count; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, run_thread, &cases[i]), 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void make_cases(rank_case *cases, int ranks, rank_body body)
{
    int port = tpt_free_port();
    memset(cases, 0, (size_t)ranks * sizeof *cases);
    for (int rank = 0; rank < ranks; rank++) {
        cases[rank].desc = desc_of(rank, ranks, port);
        cases[rank].body = body;
    }
}

/* Everybody's data in rank order, in the whole world and in two halves at the same time, for several sizes. */
static tp_status exchange_all(rank_case *own, tpi_rendezvous *meeting)
{
    static const size_t sizes[] = {0, 1, 8, 1000, TPI_RENDEZVOUS_BYTES};
    int rank = own->desc.rank, ranks = own->desc.ranks;
    for (size_t s = 0; s < 2 * COUNT_OF(sizes); s++) {
        size_t bytes = sizes[s / 2];
        bool halves = s % 2 == 1;
        tpi_rendezvous_group group = {.id = 1, .rank = rank, .size = ranks};
        if (halves)
            group = (tpi_rendezvous_group){.id = 2 + (uint64_t)(rank % 2), .rank = rank / 2,
                                           .size = (ranks + 1 - rank % 2) / 2};
        char *mine = tpt_allocate(bytes + 1), *all = tpt_allocate((size_t)group.size * bytes + 1);
        memset(mine, 'a' + rank, bytes);
        tp_status status = tpi_rendezvous_exchange(meeting, &group, mine, all, bytes);
        for (int from = 0; status == TP_OK && from < group.size; from++)
            for (size_t i = 0; i < bytes; i++)
                if (all[(size_t)from * bytes + i] != 'a' + (halves ? 2 * from + rank % 2 : from))
                    status = tpi_message(TP_ERR_INTERNAL, "byte %zu of rank %d", i, from);
        free(mine);
        free(all);
        TPI_TRY(status);
    }
    return TP_OK;
}

Test(rendezvous, threads_exchange)
{
    rank_case cases[MAX_RANKS];
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        make_cases(cases, ranks, exchange_all);
        run_threads(cases, ranks);
        for (int rank = 0; rank < ranks; rank++)
            cr_assert_eq(cases[rank].status, TP_OK, "rank %d of %d: %s", rank, ranks, cases[rank].message);
    }
}

/* ---- real processes ---------------------------------------------------------------------------------------------- */

static pid_t start_process(rank_case *own)
{
    pid_t process = fork();
    if (process != 0)
        return process;
    alarm(60);
    run_case(own);
    _exit(own->status == TP_OK ? 0 : 10 + (int)own->status);
}

static int result_of(pid_t process)
{
    int result = -1;
    cr_assert_eq(waitpid(process, &result, 0), process);
    return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
}

Test(rendezvous, processes_exchange)
{
    rank_case cases[MAX_RANKS];
    pid_t process[MAX_RANKS];
    make_cases(cases, MAX_RANKS, exchange_all);
    for (int rank = MAX_RANKS - 1; rank >= 0; rank--) /* rank 0 comes last: the others try again until it listens */
        process[rank] = start_process(&cases[rank]);
    for (int rank = 0; rank < MAX_RANKS; rank++)
        cr_assert_eq(result_of(process[rank]), 0, "rank %d", rank);
}

/* Rank 2's process ends without a word; all others must learn of it while they wait. */
static tp_status die(rank_case *own, tpi_rendezvous *meeting)
{
    const tpi_rendezvous_group group = {.id = 1, .rank = own->desc.rank, .size = own->desc.ranks};
    int mine = 1, all[MAX_RANKS];
    if (own->desc.rank == 2)
        _exit(0);
    tp_status status = tpi_rendezvous_exchange(meeting, &group, &mine, all, sizeof mine);
    CHECK(status == TP_ERR_PEER);
    CHECK(strcmp(tp_last_message(), "rank 2: its process went away") == 0);
    return TP_OK;
}

Test(rendezvous, a_dead_process_frees_its_peers)
{
    rank_case cases[4];
    pid_t process[4];
    make_cases(cases, 4, die);
    for (int rank = 0; rank < 4; rank++)
        process[rank] = start_process(&cases[rank]);
    for (int rank = 0; rank < 4; rank++)
        cr_assert_eq(result_of(process[rank]), 0, "rank %d", rank);
}

/* ---- meetings that fail ------------------------------------------------------------------------------------------ */

static void assert_opened(const rank_case *own, tp_status status, const char *words)
{
    cr_assert_eq(own->opened, status, "rank %d: %s: %s", own->desc.rank, tp_status_name(own->opened), own->message);
    cr_assert_not_null(strstr(own->message, words), "rank %d: %s", own->desc.rank, own->message);
}

Test(rendezvous, nobody_listens)
{
    rank_case one = {.desc = desc_of(1, 2, tpt_free_port())};
    one.desc.timeout_ms = 300;
    run_case(&one);
    assert_opened(&one, TP_ERR_TIMEOUT, "refused");
}

Test(rendezvous, not_all_come)
{
    rank_case cases[3];
    make_cases(cases, 3, NULL);
    cases[0].desc.timeout_ms = cases[1].desc.timeout_ms = 2000;
    run_threads(cases, 2);
    assert_opened(&cases[0], TP_ERR_TIMEOUT, "2 of 3 ranks came within 1500 ms; rank 2 did not");
    assert_opened(&cases[1], TP_ERR_TIMEOUT, "rank 2 did not");
}

Test(rendezvous, two_have_one_number)
{
    rank_case cases[3];
    make_cases(cases, 3, NULL);
    cases[2].desc.rank = 1;
    run_threads(cases, 3);
    for (int i = 0; i < 3; i++)
        assert_opened(&cases[i], TP_ERR_ARGUMENT, "two processes say they are rank 1 of 3");
}

Test(rendezvous, ranks_count_differently)
{
    rank_case cases[3];
    make_cases(cases, 3, NULL);
    cases[1].desc.ranks = 2;
    run_threads(cases, 3);
    for (int i = 0; i < 3; i++)
        assert_opened(&cases[i], TP_ERR_ARGUMENT, "rank 1 says there are 2 ranks, rank 0 says 3");
}

Test(rendezvous, bad_arguments)
{
    static const tpi_rendezvous_desc wrong[] = {
        {.rank = 0, .ranks = 0, .address = "127.0.0.1", .port = 5000, .timeout_ms = 100},
        {.rank = 0, .ranks = 65, .address = "127.0.0.1", .port = 5000, .timeout_ms = 100},
        {.rank = 2, .ranks = 2, .address = "127.0.0.1", .port = 5000, .timeout_ms = 100},
        {.rank = -1, .ranks = 2, .address = "127.0.0.1", .port = 5000, .timeout_ms = 100},
        {.rank = 0, .ranks = 2, .address = "", .port = 5000, .timeout_ms = 100},
        {.rank = 0, .ranks = 2, .address = NULL, .port = 5000, .timeout_ms = 100},
        {.rank = 0, .ranks = 2, .address = "127.0.0.1", .port = 0, .timeout_ms = 100},
        {.rank = 0, .ranks = 2, .address = "127.0.0.1", .port = 65536, .timeout_ms = 100},
        {.rank = 0, .ranks = 2, .address = "127.0.0.1", .port = 5000, .timeout_ms = 0},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        tpi_rendezvous *meeting;
        cr_assert_eq(tpi_rendezvous_open(&wrong[i], &meeting), TP_ERR_ARGUMENT, "case %zu", i);
        cr_assert_null(meeting);
    }
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int connect_stranger(int port)
{
    struct sockaddr_in address = loopback(port);
    for (int attempt = 0; attempt < 400; attempt++) {
        int connection = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0)
            return connection;
        close(connection);
        usleep(10000);
    }
    return -1;
}

/* One is silent, one speaks another language, one begins like a rank and goes, one has a later version. */
static void *be_strange(void *pointer)
{
    rank_case *late = pointer;
    int silent = connect_stranger(late->desc.port), rude = connect_stranger(late->desc.port);
    int half = connect_stranger(late->desc.port), newer = connect_stranger(late->desc.port);
    const tpi_frame frame = {.magic = TPI_FRAME_MAGIC, .version = TPI_FRAME_VERSION + 1, .kind = TPI_FRAME_HELLO,
                             .rank = 1, .size = 2};
    tpi_frame reply;
    bool sent = write(rude, "GET / HTTP/1.1\r\n\r\n", 18) == 18 && write(half, &frame, 4) == 4 &&
                write(newer, &frame, sizeof frame) == sizeof frame;
    close(half);
    bool refused = read(newer, &reply, sizeof reply) == sizeof reply && reply.kind == TPI_FRAME_REFUSED;
    bool closed = read(rude, &reply, 1) <= 0;
    run_case(late);
    close(silent);
    close(rude);
    close(newer);
    if (!sent || !refused || !closed)
        late->status = TP_ERR_INTERNAL;
    return NULL;
}

/* Rank 0 beside a thread that disturbs it, and is rank 1 in between: both meet. */
static void check_they_meet(void *(*disturb)(void *))
{
    rank_case cases[2];
    pthread_t thread;
    make_cases(cases, 2, exchange_all);
    cr_assert_eq(pthread_create(&thread, NULL, disturb, &cases[1]), 0);
    run_case(&cases[0]);
    pthread_join(thread, NULL);
    for (int rank = 0; rank < 2; rank++)
        cr_assert_eq(cases[rank].status, TP_OK, "rank %d: %s", rank, cases[rank].message);
}

Test(rendezvous, strangers_do_no_harm)
{
    check_they_meet(be_strange);
}

/* More than the listener has places for, all silent: the rank that comes after them is heard. */
enum { CROWD = 100 };

static void *come_after_a_crowd(void *pointer)
{
    rank_case *late = pointer;
    int crowd[CROWD];
    for (int i = 0; i < CROWD; i++)
        crowd[i] = connect_stranger(late->desc.port);
    usleep(200000); /* all are taken in */
    run_case(late);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    return NULL;
}

Test(rendezvous, a_crowd_of_silent_strangers_keeps_no_rank_out)
{
    check_they_meet(come_after_a_crowd);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* It takes the connection, and says nothing. */
Test(rendezvous, a_silent_listener_is_waited_for_no_longer_than_the_bound)
{
    rank_case one = {.desc = desc_of(1, 2, tpt_free_port())};
    struct sockaddr_in address = loopback(one.desc.port);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(listener, 1), 0);
    one.desc.timeout_ms = 1000;
    double begin = seconds();
    run_case(&one);
    double waited = seconds() - begin;
    close(listener);
    assert_opened(&one, TP_ERR_TIMEOUT, "waited 1000 ms");
    cr_assert(waited >= 0.95 && waited < 2.5, "%g s", waited);
}

static void *answer_rudely(void *pointer)
{
    int connection = accept(*(int *)pointer, NULL, NULL);
    if (connection >= 0 && write(connection, "220 mail server ready\r\n", 23) == 23)
        usleep(200000);
    close(connection);
    return NULL;
}

Test(rendezvous, a_strange_listener_is_known_as_such)
{
    rank_case one = {.desc = desc_of(1, 2, tpt_free_port())};
    struct sockaddr_in address = loopback(one.desc.port);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    pthread_t thread;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(pthread_create(&thread, NULL, answer_rudely, &listener), 0);
    run_case(&one);
    pthread_join(thread, NULL);
    close(listener);
    assert_opened(&one, TP_ERR_COMM, "no rank of this library");
}

/* ---- failures later on ------------------------------------------------------------------------------------------- */

static tp_status one_aborts(rank_case *own, tpi_rendezvous *meeting)
{
    const tpi_rendezvous_group group = {.id = 1, .rank = own->desc.rank, .size = own->desc.ranks};
    tpi_rendezvous_failure failure;
    int mine = 1, all[MAX_RANKS];
    if (own->desc.rank == 1) {
        tpi_rendezvous_abort(meeting, TP_ERR_MEMORY, "planted");
        return TP_OK;
    }
    CHECK(tpi_rendezvous_exchange(meeting, &group, &mine, all, sizeof mine) == TP_ERR_PEER);
    CHECK(strcmp(tp_last_message(), "rank 1: planted") == 0);
    CHECK(tpi_rendezvous_failed(meeting, &failure));
    CHECK(failure.rank == 1 && failure.status == TP_ERR_MEMORY && strcmp(failure.message, "planted") == 0);
    return TP_OK;
}

/* A time-out is the rank's own; what it says of it reaches those that wait, too. */
static tp_status one_is_late(rank_case *own, tpi_rendezvous *meeting)
{
    const tpi_rendezvous_group group = {.id = 1, .rank = own->desc.rank, .size = own->desc.ranks};
    tpi_rendezvous_failure failure;
    int mine = 1, all[MAX_RANKS];
    if (own->desc.rank == 2) {
        while (!tpi_rendezvous_failed(meeting, &failure))
            usleep(1000);
        CHECK(failure.status == TP_ERR_TIMEOUT);
        return TP_OK;
    }
    tp_status status = tpi_rendezvous_exchange(meeting, &group, &mine, all, sizeof mine);
    CHECK(status == TP_ERR_TIMEOUT || status == TP_ERR_PEER);
    if (status == TP_ERR_TIMEOUT)
        tpi_rendezvous_abort(meeting, status, tp_last_message());
    return TP_OK;
}

static tp_status sizes_differ(rank_case *own, tpi_rendezvous *meeting)
{
    const tpi_rendezvous_group group = {.id = 1, .rank = own->desc.rank, .size = own->desc.ranks};
    char mine[8] = "", all[8 * MAX_RANKS];
    CHECK(tpi_rendezvous_exchange(meeting, &group, mine, all, own->desc.rank == 0 ? 8 : 4) == TP_ERR_MISMATCH);
    return TP_OK;
}

/* Ranks that leave in order are no failure, and those that still want something from them are told. */
static tp_status one_leaves(rank_case *own, tpi_rendezvous *meeting)
{
    const tpi_rendezvous_group group = {.id = 1, .rank = own->desc.rank, .size = own->desc.ranks};
    tpi_rendezvous_failure failure;
    int mine = 1, all[MAX_RANKS];
    if (own->desc.rank == 1)
        return TP_OK;
    usleep(own->desc.rank == 0 ? 100000 : 600000);
    CHECK(own->desc.rank != 0 || !tpi_rendezvous_failed(meeting, &failure));
    CHECK(tpi_rendezvous_exchange(meeting, &group, &mine, all, sizeof mine) == TP_ERR_PEER);
    return TP_OK;
}

Test(rendezvous, failures_reach_all)
{
    static const rank_body bodies[] = {one_aborts, one_is_late, sizes_differ, one_leaves};
    for (size_t b = 0; b < COUNT_OF(bodies); b++) {
        rank_case cases[3];
        make_cases(cases, 3, bodies[b]);
        for (int rank = 0; rank < 3; rank++)
            cases[rank].desc.timeout_ms = bodies[b] == one_is_late ? 500 : 20000;
        run_threads(cases, 3);
        for (int rank = 0; rank < 3; rank++)
            cr_assert_eq(cases[rank].status, TP_OK, "body %zu, rank %d: %s", b, rank, cases[rank].message);
    }
}
