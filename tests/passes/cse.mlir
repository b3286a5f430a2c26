// Equal ops become one, whatever their results are used for; what nobody reads goes.
!t = tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
module {
  func.func @main(%x: !t, %y: !t) -> !t {
    %a = "dhlo.mul"(%x, %y) : (!t, !t) -> !t
    %b = "dhlo.mul"(%x, %y) : (!t, !t) -> !t
    %dead = "dhlo.exp"(%b) : (!t) -> !t
    %dead2 = "dhlo.reduce"(%dead) {how = "sum", dims = [1]} : (!t) -> tensor<?xf32, #dhlo.shape<["n"]>>
    %c = "dhlo.add"(%a, %b) : (!t, !t) -> !t
    return %c : !t
  }
}
