"""Programs as the standard library's documentation has them, but for the import: executors and pools, under each start method.

Nothing is fetched and nothing takes long here. What matters is the shape: functions of the script, a guard around its main part, and
what is used of futures, pools and results.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

METHODS = ["fork", "spawn", "forkserver"]

PAGES = """
    import concurrent.futures
    import exoskel

    PAGES = ["http://a.example/", "http://b.example/", "http://missing.example/"]

    def load_page(address, timeout):
        if "missing" in address:
            raise OSError("no such host")
        return b"x" * len(address)

    def main():
        with exoskel.Executor(max_workers=5) as executor:
            future_to_address = {executor.submit(load_page, page, 60): page for page in PAGES}
            for future in concurrent.futures.as_completed(future_to_address):
                address = future_to_address[future]
                try:
                    data = future.result()
                except Exception as error:
                    print("%r generated an exception: %s" % (address, error))
                else:
                    print("%r page is %d bytes" % (address, len(data)))
"""
PAGES_PRINTED = """
    'http://a.example/' page is 17 bytes
    'http://b.example/' page is 17 bytes
    'http://missing.example/' generated an exception: no such host
"""

PRIMES = """
    import math
    import exoskel

    PRIMES = [112272535095293, 112582705942171, 1099726899285419, 15]

    def is_prime(number):
        if number % 2 == 0:
            return False
        for divisor in range(3, min(math.isqrt(number), 100_000) + 1, 2):
            if number % divisor == 0:
                return False
        return True

    def main():
        with exoskel.Executor() as executor:
            for number, prime in zip(PRIMES, executor.map(is_prime, PRIMES)):
                print("%d is prime: %s" % (number, prime))
"""
PRIMES_PRINTED = """
    1099726899285419 is prime: True
    112272535095293 is prime: True
    112582705942171 is prime: True
    15 is prime: False
"""

WAITING = """
    import concurrent.futures
    import shutil
    import exoskel

    def double(number):
        return 2 * number

    def main():
        executor = exoskel.Executor(max_workers=2)
        futures = [executor.submit(double, number) for number in range(10)]
        done, not_done = concurrent.futures.wait(futures)
        print(len(done), len(not_done))
        print(sorted(future.result() for future in done))
        future = executor.submit(pow, 323, 1235)
        print(len(str(future.result())))
        future.add_done_callback(lambda future: print(future.done(), future.cancelled()))
        executor.shutdown()
"""
WAITING_PRINTED = """
    10 0
    3099
    True False
    [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
"""

POOL = """
    import os
    import time
    from multiprocessing import TimeoutError
    from exoskel import Pool

    def square(number):
        return number * number

    def main():
        with Pool(processes=4) as pool:
            print(pool.map(square, range(10)))
            print(sorted(pool.imap_unordered(square, range(10))))
            result = pool.apply_async(square, (20,))
            print(result.get(timeout=60))
            result = pool.apply_async(os.getpid, ())
            print(result.get(timeout=60) != os.getpid())
            several = [pool.apply_async(os.getpid, ()) for number in range(4)]
            print(len([result.get(timeout=60) for result in several]))
            result = pool.apply_async(time.sleep, (60,))
            try:
                print(result.get(timeout=0.1))
            except TimeoutError:
                print("We lacked patience and got a multiprocessing.TimeoutError")
            print("the pool remains available for more work")
        print("Now the pool is closed and no longer available")
        result = None
"""
POOL_PRINTED = """
    4
    400
    Now the pool is closed and no longer available
    True
    We lacked patience and got a multiprocessing.TimeoutError
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    the pool remains available for more work
"""

POOL_TESTS = """
    import multiprocessing
    import random
    import time
    from exoskel import Pool

    def calculate(function, arguments):
        result = function(*arguments)
        return "%s says that %s%s = %s" % (
            multiprocessing.current_process().name, function.__name__, arguments, result)

    def calculate_star(arguments):
        return calculate(*arguments)

    def multiply(a, b):
        time.sleep(0.02 * random.random())
        return a * b

    def add(a, b):
        time.sleep(0.02 * random.random())
        return a + b

    def invert(number):
        return 1.0 / (number - 5.0)

    def cube(number):
        return number ** 3

    def main():
        tasks = [(multiply, (i, 7)) for i in range(10)] + [(add, (i, 8)) for i in range(10)]
        with Pool(4) as pool:
            results = [pool.apply_async(calculate, task) for task in tasks]
            ordered = pool.imap(calculate_star, tasks)
            unordered = pool.imap_unordered(calculate_star, tasks)
            expected = [result.get() for result in results]
            print(expected[8].partition(" ")[2], len(expected))
            print(list(ordered) == expected, sorted(unordered) == sorted(expected))
            print(pool.map(calculate_star, tasks) == expected)
            count = 2000
            assert pool.map(cube, range(count)) == list(map(cube, range(count)))
            assert list(pool.imap(cube, range(count), chunksize=count // 8)) == list(map(cube, range(count)))
            for use in (lambda: pool.apply(invert, (5,)), lambda: pool.map(invert, list(range(10))),
                        lambda: list(pool.imap(invert, list(range(10))))):
                try:
                    print(use())
                except ZeroDivisionError:
                    print("got ZeroDivisionError as expected")
            results = pool.imap(invert, list(range(10)))
            for number in range(10):
                try:
                    value = next(results)
                except ZeroDivisionError:
                    assert number == 5
                except StopIteration:
                    break
                else:
                    assert number != 5
            assert number == 9
            result = pool.apply_async(calculate, tasks[0])
            while True:
                try:
                    print(result.get(0.002).partition(" ")[2])
                    break
                except multiprocessing.TimeoutError:
                    pass
            results, got = pool.imap(calculate_star, tasks), []
            while True:
                try:
                    got.append(results.next(0.002))
                except StopIteration:
                    break
                except multiprocessing.TimeoutError:
                    pass
            print(got == expected)
            numbers = []
            pool.apply_async(multiply, (7, 8), callback=numbers.append).wait()
            pool.map_async(cube, list(range(10)), callback=numbers.extend).wait()
            print(numbers)
            result = pool.apply_async(time.sleep, [0.01])
            pool.close()
            pool.join()
            print(result.get())
"""
POOL_TESTS_PRINTED = """
    None
    True
    True
    True True
    [56, 0, 1, 8, 27, 64, 125, 216, 343, 512, 729]
    got ZeroDivisionError as expected
    got ZeroDivisionError as expected
    got ZeroDivisionError as expected
    says that multiply(0, 7) = 0
    says that multiply(8, 7) = 56 20
"""

# The main part, as the documentation guards it.
MAIN = """
    if __name__ == "__main__":
        import multiprocessing
        multiprocessing.freeze_support()
        multiprocessing.set_start_method({method!r})
        process = multiprocessing.Process(target=len, args=([],))
        process.start()
        process.join()
        main()
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(PAGES, PAGES_PRINTED, id="pages"),
        pytest.param(PRIMES, PRIMES_PRINTED, id="primes"),
        pytest.param(WAITING, WAITING_PRINTED, id="wait"),
        pytest.param(POOL, POOL_PRINTED, id="pool"),
        pytest.param(POOL_TESTS, POOL_TESTS_PRINTED, id="pool tests"),
    ],
)
def test_a_program_runs(program: str, printed: str, method: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program) + textwrap.dedent(MAIN.format(method=method)))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == textwrap.dedent(printed).split("\n")[1:-1]
