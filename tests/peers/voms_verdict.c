/* What libvomsapi makes of one chain: `vo` and `fqan` lines, or one `error` line.
 *
 * usage: voms_verdict TRUST_DIRECTORY VOMSDIR CHAIN.pem
 *
 * Generic attributes are left out: the C interface of 2.1 hands out names that it has freed.
 * The time is the process's own; whoever wants another one runs this under faketime.
 */
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <voms/voms_apic.h>

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: voms_verdict TRUST_DIRECTORY VOMSDIR CHAIN.pem\n");
        return 2;
    }
    FILE *file = fopen(arguments[3], "r");
    if (file == NULL) {
        perror(arguments[3]);
        return 2;
    }
    STACK_OF(X509) *chain = sk_X509_new_null();
    X509 *leaf = PEM_read_X509(file, NULL, NULL, NULL);
    if (leaf == NULL) {
        printf("error\t0\tno certificate\n");
        return 0;
    }
    for (X509 *next; (next = PEM_read_X509(file, NULL, NULL, NULL)) != NULL;)
        sk_X509_push(chain, next);
    fclose(file);

    struct vomsdata *data = VOMS_Init(arguments[2], arguments[1]);
    if (data == NULL) {
        fprintf(stderr, "VOMS_Init failed\n");
        return 2;
    }
    int error = 0;
    if (!VOMS_Retrieve(leaf, chain, RECURSE_CHAIN, data, &error)) {
        char text[1000] = "";
        VOMS_ErrorMessage(data, error, text, sizeof text);
        printf("error\t%d\t%s\n", error, text);
        return 0;
    }
    for (struct voms **one = data->data; one != NULL && *one != NULL; one++) {
        printf("vo\t%s\n", (*one)->voname);
        for (char **name = (*one)->fqan; name != NULL && *name != NULL; name++)
            printf("fqan\t%s\n", *name);
    }
    return 0;
}
