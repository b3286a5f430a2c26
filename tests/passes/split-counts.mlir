!n = tensor<?xi64, #dhlo.shape<["n"]>>
!u = tensor<?xi64, #dhlo.shape<["u0"]>>
!w = tensor<?x1xi64, #dhlo.shape<["u1", "1"]>>
module {
  // What counts defines the symbol; what fills stands behind it.
  func.func @main(%x: !n) -> (!u, !n, !u, !w) {
    %values, %inverse, %counts = "dhlo.unique"(%x) {symbol = "u0"} : (!n) -> (!u, !n, !u)
    %where = "dhlo.nonzero"(%x) {symbol = "u1"} : (!n) -> !w
    return %values, %inverse, %counts, %where : !u, !n, !u, !w
  }
}
