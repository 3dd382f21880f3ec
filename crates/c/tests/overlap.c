#include <stdio.h>
#include "exoskel.h"

/* One process that reads into memory which it gives twice: overlap. What the second array is told is printed. */
int main(void) {
    const int64_t shape[] = {8};
    static double own[12];
    exoskel_member *me;
    exoskel_array *heat, *ice;
    if (exoskel_attach("target", 1, 0, &me)) return 2;
    if (exoskel_array_in(me, "field", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 1, shape, "block", NULL, NULL, own, &heat)) return 2;
    if (!exoskel_array_in(me, "ice", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 1, shape, "block", NULL, NULL, own + 4, &ice)) return 3;
    printf("%s\n%p %p\n", exoskel_error(), (void *)own, (void *)(own + 4));
    return exoskel_leave(me, NULL) ? 4 : 0;
}
