! Arrays between parallel programs, for Fortran: the functions of exoskel.h, which says what each one does.
! After an error: print *, exoskel_error_text()
module exoskel
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int), parameter :: exoskel_int8 = 1, exoskel_int16 = 2, exoskel_int32 = 3, exoskel_int64 = 4
  ! Fortran has no such integers: their bytes are those of integers of the same size.
  integer(c_int), parameter :: exoskel_uint8 = 5, exoskel_uint16 = 6, exoskel_uint32 = 7, exoskel_uint64 = 8
  integer(c_int), parameter :: exoskel_float32 = 9, exoskel_float64 = 10
  integer(c_int), parameter :: exoskel_complex64 = 11, exoskel_complex128 = 12
  integer(c_int), parameter :: exoskel_order_c = 0, exoskel_order_fortran = 1

  interface
    integer(c_int) function exoskel_attach(program, size, rank, member) bind(c)
      import
      character(kind=c_char), intent(in) :: program(*)
      integer(c_int), value :: size, rank
      type(c_ptr), intent(out) :: member
    end function

    ! Without a grid or a halo: c_null_ptr. Otherwise c_loc of an array of c_int or c_int64_t.
    integer(c_int) function exoskel_array_of(member, name, type, order, axes, shape, sharing, grid, halo, array) bind(c)
      import
      type(c_ptr), value :: member, grid, halo
      character(kind=c_char), intent(in) :: name(*), sharing(*)
      integer(c_int), value :: type, order, axes
      integer(c_int64_t), intent(in) :: shape(*)
      type(c_ptr), intent(out) :: array
    end function

    ! memory: c_loc of this process's part, its halo included, without gaps.
    integer(c_int) function exoskel_array_in(member, name, type, order, axes, shape, sharing, grid, halo, memory, array) bind(c)
      import
      type(c_ptr), value :: member, grid, halo, memory
      character(kind=c_char), intent(in) :: name(*), sharing(*)
      integer(c_int), value :: type, order, axes
      integer(c_int64_t), intent(in) :: shape(*)
      type(c_ptr), intent(out) :: array
    end function

    ! indices(axis): c_loc of the process's own indices, which count from 0, or c_null_ptr where an axis has no index sets.
    ! memory: c_loc of this process's part, or c_null_ptr.
    integer(c_int) function exoskel_array_indices(member, name, type, order, axes, shape, sharing, grid, counts, indices, &
        memory, array) bind(c)
      import
      type(c_ptr), value :: member, grid, memory
      character(kind=c_char), intent(in) :: name(*), sharing(*)
      integer(c_int), value :: type, order, axes
      integer(c_int64_t), intent(in) :: shape(*), counts(*)
      type(c_ptr), intent(in) :: indices(*)
      type(c_ptr), intent(out) :: array
    end function

    integer(c_int) function exoskel_local_shape(array, shape) bind(c)
      import
      type(c_ptr), value :: array
      integer(c_int64_t), intent(out) :: shape(*)
    end function

    ! axis and first count from 0, as in C: the first axis is 0, and the part begins at the Fortran index first + 1.
    integer(c_int) function exoskel_extent(array, axis, first, count) bind(c)
      import
      type(c_ptr), value :: array
      integer(c_int), value :: axis
      integer(c_int64_t), intent(out) :: first, count
    end function

    type(c_ptr) function exoskel_write(array) bind(c)
      import
      type(c_ptr), value :: array
    end function

    type(c_ptr) function exoskel_read(array) bind(c)
      import
      type(c_ptr), value :: array
    end function

    integer(c_int) function exoskel_done(array) bind(c)
      import
      type(c_ptr), value :: array
    end function

    ! Without an error: c_null_ptr.
    integer(c_int) function exoskel_leave(member, error) bind(c)
      import
      type(c_ptr), value :: member, error
    end function

    type(c_ptr) function exoskel_version() bind(c)
      import
    end function

    ! Text of C, which ends with a zero: exoskel_error_text gives it as text of Fortran.
    type(c_ptr) function exoskel_error() bind(c)
      import
    end function
  end interface

contains

  ! What the last error in this thread was.
  function exoskel_error_text() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    type(c_ptr) :: said
    integer(c_size_t) :: length, letter
    interface
      integer(c_size_t) function strlen(text) bind(c)
        import
        type(c_ptr), value :: text
      end function
    end interface

    said = exoskel_error()
    length = 0
    if (c_associated(said)) length = strlen(said)
    allocate (character(length) :: text)
    if (length == 0) return
    call c_f_pointer(said, letters, [length])
    do letter = 1, length
      text(letter:letter) = letters(letter)
    end do
  end function
end module
