/* libzmq over TCP, plain and with CURVE: round trips by REQ and REP, streams by PUSH and PULL, whose end is acknowledged. */
#include "turns.h"
#include <pthread.h>
#include <zmq.h>

struct pair {
    void *near_ask, *far_ask, *near_push, *far_push;
};

static struct pair plain, curve;
static void *context;
static char server_public[41], server_secret[41], client_public[41], client_secret[41];

static void check(int result) {
    if (result < 0) fail(zmq_strerror(zmq_errno()));
}

static void *far_socket(int kind, int secure, char *place, size_t room) {
    void *socket = zmq_socket(context, kind);
    int one = 1;
    if (secure) {
        check(zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one));
        check(zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, server_secret, 40));
    }
    check(zmq_bind(socket, "tcp://127.0.0.1:*"));
    check(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, place, &room));
    return socket;
}

static void *near_socket(int kind, int secure, const char *place) {
    void *socket = zmq_socket(context, kind);
    if (secure) {
        check(zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, server_public, 40));
        check(zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, client_public, 40));
        check(zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, client_secret, 40));
    }
    check(zmq_connect(socket, place));
    return socket;
}

static void connect_pair(struct pair *pair, int secure) {
    char place[256];
    pair->far_ask = far_socket(ZMQ_REP, secure, place, sizeof place);
    pair->near_ask = near_socket(ZMQ_REQ, secure, place);
    pair->far_push = far_socket(ZMQ_PULL, secure, place, sizeof place);
    pair->near_push = near_socket(ZMQ_PUSH, secure, place);
}

static void *echo(void *socket) {
    for (;;) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, socket, 0) < 0 || zmq_msg_send(&message, socket, 0) < 0) return NULL;
    }
}

/* A message of one byte is the end of a turn: the echo's socket tells the near end. */
static void *swallow(void *given) {
    struct pair *pair = given;
    void *told = zmq_socket(context, ZMQ_PAIR);
    check(zmq_connect(told, pair == &curve ? "inproc://curve" : "inproc://plain"));
    for (;;) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, pair->far_push, 0) < 0) return NULL;
        size_t bytes = zmq_msg_size(&message);
        zmq_msg_close(&message);
        if (bytes == 1) check(zmq_send(told, "", 0, 0));
    }
}

static void *ends[2];

static void turn(const char *lane, size_t bytes, long count) {
    int secure = strstr(lane, "curve") != NULL;
    struct pair *pair = secure ? &curve : &plain;
    char *memory = filled(bytes);
    if (!strncmp(lane, "stream", 6)) {
        for (long number = 0; number < count; number++) {
            /* Not copied: the memory is one and the same until the turn's end. */
            zmq_msg_t message;
            zmq_msg_init_data(&message, memory, bytes, NULL, NULL);
            check(zmq_msg_send(&message, pair->near_push, 0));
        }
        check(zmq_send(pair->near_push, "e", 1, 0));
        check(zmq_recv(ends[secure], NULL, 0, 0));
    } else {
        for (long number = 0; number < count; number++) {
            check(zmq_send(pair->near_ask, memory, bytes, 0));
            check(zmq_recv(pair->near_ask, memory, bytes, 0));
        }
    }
    free(memory);
}

int main(void) {
    pthread_t thread;
    context = zmq_ctx_new();
    check(zmq_curve_keypair(server_public, server_secret));
    check(zmq_curve_keypair(client_public, client_secret));
    connect_pair(&plain, 0);
    connect_pair(&curve, 1);
    struct pair *pairs[] = {&plain, &curve};
    const char *places[] = {"inproc://plain", "inproc://curve"};
    for (int index = 0; index < 2; index++) {
        ends[index] = zmq_socket(context, ZMQ_PAIR);
        check(zmq_bind(ends[index], places[index]));
        pthread_create(&thread, NULL, echo, pairs[index]->far_ask);
        pthread_create(&thread, NULL, swallow, pairs[index]);
    }
    take_turns("ping_libzmq_plain ping_libzmq_curve stream_libzmq_plain stream_libzmq_curve", turn);
    _exit(0);
}
