/* NNG over TCP, plain: Debian's library comes without TLS in older releases, so TLS is tried and left out where it isn't there. */
#include "turns.h"
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/protocol/pipeline0/pull.h>
#include <nng/protocol/pipeline0/push.h>
#include <nng/supplemental/tls/tls.h>
#include <pthread.h>

struct lane {
    nng_socket near_ask, far_ask, near_push, far_push;
    int ended[2];
};

static struct lane plain, secure;

static int check(int result) {
    if (result) fail(nng_strerror(result));
    return result;
}

static void *echo(void *given) {
    struct lane *lane = given;
    nng_msg *message;
    while (!nng_recvmsg(lane->far_ask, &message, 0) && !nng_sendmsg(lane->far_ask, message, 0)) {
    }
    return NULL;
}

static void *swallow(void *given) {
    struct lane *lane = given;
    nng_msg *message;
    while (!nng_recvmsg(lane->far_push, &message, 0)) {
        size_t bytes = nng_msg_len(message);
        nng_msg_free(message);
        if (bytes == 1 && write(lane->ended[1], "e", 1) != 1) return NULL;
    }
    return NULL;
}

static int meet(nng_socket far, nng_socket near, const char *scheme, nng_tls_config *server, nng_tls_config *client) {
    static int port = 0;
    nng_listener listener;
    nng_dialer dialer;
    char place[64];
    int result = NNG_EADDRINUSE;
    nng_socket_set_size(far, NNG_OPT_RECVMAXSZ, 0);
    nng_socket_set_size(near, NNG_OPT_RECVMAXSZ, 0);
    for (int tries = 0; tries < 64 && result == NNG_EADDRINUSE; tries++) {
        snprintf(place, sizeof place, "%s://127.0.0.1:%d", scheme, 20000 + (getpid() + 7 * port++) % 10000);
        if ((result = nng_listener_create(&listener, far, place))) return result;
        if (server) nng_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, server);
        if ((result = nng_listener_start(listener, 0))) nng_listener_close(listener);
    }
    if (result || (result = nng_dialer_create(&dialer, near, place))) return result;
    if (client) nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, client);
    return nng_dialer_start(dialer, 0);
}

static int connect_lane(struct lane *lane, const char *scheme, nng_tls_config *server, nng_tls_config *client) {
    pthread_t thread;
    int result;
    check(nng_pair0_open(&lane->near_ask));
    check(nng_pair0_open(&lane->far_ask));
    check(nng_push0_open(&lane->near_push));
    check(nng_pull0_open(&lane->far_push));
    if ((result = meet(lane->far_ask, lane->near_ask, scheme, server, client))) return result;
    if ((result = meet(lane->far_push, lane->near_push, scheme, server, client))) return result;
    if (pipe(lane->ended)) fail("no pipe");
    pthread_create(&thread, NULL, echo, lane);
    pthread_create(&thread, NULL, swallow, lane);
    return 0;
}

static void turn(const char *name, size_t bytes, long count) {
    struct lane *lane = strstr(name, "tls") ? &secure : &plain;
    char *memory = filled(bytes), end;
    if (!strncmp(name, "stream", 6)) {
        for (long number = 0; number < count; number++) check(nng_send(lane->near_push, memory, bytes, 0));
        check(nng_send(lane->near_push, "e", 1, 0));
        if (read(lane->ended[0], &end, 1) != 1) fail("the far end has gone");
    } else {
        for (long number = 0; number < count; number++) {
            size_t got = bytes;
            check(nng_send(lane->near_ask, memory, bytes, 0));
            check(nng_recv(lane->near_ask, memory, &got, 0));
        }
    }
    free(memory);
}

static char *text_of(const char *path) {
    static char room[65536];
    FILE *file = fopen(path, "r");
    if (!file) fail("a certificate can't be read");
    room[fread(room, 1, sizeof room - 1, file)] = 0;
    fclose(file);
    return strdup(room);
}

/* nng_lane AUTHORITY CHAIN KEY: files in PEM. */
int main(int words, char **word) {
    const char *lanes = "ping_nng_plain stream_nng_plain";
    check(connect_lane(&plain, "tcp", NULL, NULL));
    nng_tls_config *server, *client;
    if (words == 4 && !nng_tls_config_alloc(&server, NNG_TLS_MODE_SERVER)) {
        check(nng_tls_config_alloc(&client, NNG_TLS_MODE_CLIENT));
        char *authority = text_of(word[1]), *chain = text_of(word[2]), *key = text_of(word[3]);
        nng_tls_config *both[] = {server, client};
        for (int index = 0; index < 2; index++) {
            check(nng_tls_config_own_cert(both[index], chain, key, NULL));
            check(nng_tls_config_ca_chain(both[index], authority, NULL));
            check(nng_tls_config_auth_mode(both[index], NNG_TLS_AUTH_MODE_REQUIRED));
        }
        check(nng_tls_config_server_name(client, "localhost"));
        check(connect_lane(&secure, "tls+tcp", server, client));
        lanes = "ping_nng_plain stream_nng_plain ping_nng_tls stream_nng_tls";
    }
    take_turns(lanes, turn);
    _exit(0);
}
